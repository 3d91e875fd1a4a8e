"""Worker context: the objects that all jobs of a worker process share.

One of them has places for jobs that call agent servers: a hostile server occupies a job's thread until the job times
out.
"""

import threading
from collections import Counter
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import httpx

from shared.crypto import Vault
from shared.db.database import Database
from shared.leasing.leases import MAX_SECONDS
from shared.models import Sandbox
from shared.queue.broker import Publisher
from shared.queue.jobs import Job
from shared.redaction import Redact
from shared.sandboxes.queries import agent_server
from shared.settings import Settings
from worker.agent_server.client import AgentServer
from worker.engine.protocol import Engine
from worker.lease_renewer import LeaseRenewer
from worker.settings import WorkerSettings

# Conversation starts of one sandbox at a time, and refreshes of its conversations at a time.
MAX_IN_SANDBOX = 4
# Waiting jobs of one owner that are enqueued as soon as a place is free. The sweep enqueues the others.
MAX_REMEMBERED = 100
# Min delay in seconds before a waiting job is enqueued again; the delay grows with the number of waiting jobs.
BUSY_SECONDS = 2.0
RETRIES_A_SECOND = 10

Key = TypeVar("Key")


class AgentWork(NamedTuple):
    """A job that calls the agent server of a sandbox of this owner."""

    job: Job
    sandbox_id: str
    owner_id: str


class AgentLane:
    """Half of a worker's job threads, for jobs that call agent servers.

    An owner gets a place while they have fewer than are free. One owner thus occupies at most a quarter of the job
    threads and leaves places to others.
    """

    def __init__(self, threads: int) -> None:
        self._free = max(1, threads // 2)
        self._of_owner = Counter[str]()
        self._in_sandbox = Counter[tuple[str, str]]()
        self._waiting: dict[str, dict[Job, AgentWork]] = {}
        self._lock = threading.Lock()

    def enter(self, work: AgentWork) -> bool:
        """Take a place. False: no place is free for this owner or this sandbox, and the job is remembered."""
        with self._lock:
            if not self._has_place(work):
                self._remember(work)
                return False
            self._count(work, 1)
            self._remove(work)
            return True

    def leave(self, work: AgentWork) -> Job | None:
        """Free the place. Returns the waiting job that may take it, of the first owner in the queue."""
        with self._lock:
            self._count(work, -1)
            for owner_id, jobs in self._waiting.items():
                if self._of_owner[owner_id] < self._free and (found := self._find(jobs)) is not None:
                    self._remove(found)
                    if owner_id in self._waiting:  # moved behind the other owners
                        self._waiting[owner_id] = self._waiting.pop(owner_id)
                    return found.job
            return None

    @property
    def retry_seconds(self) -> float:
        """Delay before a job without a place retries. It grows with the number of waiting jobs."""
        with self._lock:
            waiting = sum(map(len, self._waiting.values()))
        return min(MAX_SECONDS, max(BUSY_SECONDS, waiting / RETRIES_A_SECOND))

    def _has_place(self, work: AgentWork) -> bool:
        return self._of_owner[work.owner_id] < self._free and self._in_sandbox[_key(work)] < MAX_IN_SANDBOX

    def _find(self, jobs: dict[Job, AgentWork]) -> AgentWork | None:
        return next((work for work in jobs.values() if self._has_place(work)), None)

    def _count(self, work: AgentWork, number: int) -> None:
        self._free -= number
        _add(self._of_owner, work.owner_id, number)
        _add(self._in_sandbox, _key(work), number)

    def _remember(self, work: AgentWork) -> None:
        jobs = self._waiting.setdefault(work.owner_id, {})
        if len(jobs) < MAX_REMEMBERED:
            jobs.setdefault(work.job, work)

    def _remove(self, work: AgentWork) -> None:
        jobs = self._waiting.get(work.owner_id, {})
        jobs.pop(work.job, None)
        if not jobs:
            self._waiting.pop(work.owner_id, None)


def _add(counter: Counter[Key], key: Key, number: int) -> None:
    counter[key] += number
    if not counter[key]:
        del counter[key]


def _key(work: AgentWork) -> tuple[str, str]:
    return work.job.task, work.sandbox_id


@dataclass(frozen=True)
class WorkerContext:
    """Dependencies of a job. All job threads share them."""

    shared: Settings
    settings: WorkerSettings
    database: Database
    vault: Vault
    engine: Engine
    publisher: Publisher
    renewer: LeaseRenewer
    http: httpx.Client
    # Runs status checks (worker.loops.recheck).
    status_checks: Executor
    # Probes agent servers while their containers resume (worker.sandboxes.agent_server_lifecycle).
    probes: Executor
    # Label of this installation's containers. Containers of other installations on the engine are left alone.
    installation: str
    # Limits the job threads that wait for agent servers.
    lane: AgentLane

    def agent_server(
        self, sandbox: Sandbox, url: str | None = None, redact: Redact = lambda text: text
    ) -> AgentServer | None:
        """Return a client for a sandbox's agent server at `url`, or at the row's URL; None if the row has no URL."""
        url = url or agent_server(sandbox.exposed_urls)
        return AgentServer(url, self.vault.decrypt(sandbox.session_key), self.http, redact) if url else None

"""Worker context: the objects that all jobs of a worker process share.

Two of them are for long work: `LongRuns` lets a run outlast its job, so that the job's thread is free again, and `Lane`
limits the number of concurrent runs ("slots"). A job without a slot occupies no thread: it is enqueued again.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import httpx
import structlog

from shared.conversations import known_secrets
from shared.crypto import Vault
from shared.db.database import UNAVAILABLE, Database
from shared.leasing.limits import MAX_SECONDS
from shared.models import Sandbox
from shared.observability.correlation import request_id
from shared.queue.broker import Publisher
from shared.queue.jobs import Job
from shared.redaction import Redact
from shared.sandboxes.status import agent_server
from shared.settings import Settings
from worker.agent_server.client import AgentServer
from worker.engine.protocol import Engine, EngineError
from worker.lease_renewer import LeaseRenewer, SharedCalls
from worker.network.protocol import Isolation
from worker.settings import WorkerSettings

log = structlog.get_logger()

# Seconds for which a run occupies a job's thread. Most runs end sooner.
JOB_SECONDS = 0.5
# Max concurrent conversation starts in one sandbox, and max concurrent refreshes of its conversations.
MAX_IN_SANDBOX = 4
# Max concurrent readings of logs for requests.
MAX_READINGS = 8
# Max waiting jobs of one owner that are enqueued as soon as a slot is free. The sweep enqueues the others.
MAX_REMEMBERED = 100
# Min delay in seconds before a waiting job is enqueued again; the delay grows with the number of waiting jobs.
BUSY_SECONDS = 2.0
RETRIES_A_SECOND = 10
# Replaces the text of an agent server's error while the secrets in it are unknown.
HIDDEN_TEXT = "(its text is not shown, because its owner's secrets can't be read)"

Key = TypeVar("Key")
# Returns why a node may take no new sandboxes; None if it may. It must return at once: each heartbeat calls it.
NodeCheck = Callable[[], str | None]


class LongRuns:
    """Runs of leased rows. Each run has its own thread, so that none waits for another, however many are stuck.

    The number of runs is limited by the number of rows that a node leases at a time.
    """

    def __init__(self, threads: Executor) -> None:
        """Run on these threads, of which there must be one for each row that may be leased."""
        self._threads = threads
        self._going_on: set[Future[bool]] = set()

    def run(self, work: Callable[[], bool]) -> bool:
        """Run `work`, and return its result; False if it is still running.

        Raises:
            Exception: any error of `work` while the job waits for it. Later ones are logged.
        """
        run = self._threads.submit(copy_context().run, work)
        if wait([run], timeout=JOB_SECONDS).done:
            return run.result()
        self._going_on.add(run)
        run.add_done_callback(self._end)
        return False

    def close(self) -> None:
        """Wait for the end of the runs of all jobs. A status check may still begin a run."""
        wait(tuple(self._going_on))

    def _end(self, run: Future[bool]) -> None:
        self._going_on.discard(run)
        if (error := run.exception()) is not None:
            log.error("run_failed", error=type(error).__name__, exc_info=error)


class LaneJob(NamedTuple):
    """A long job in a sandbox of this owner. For warm sandboxes, the owner is an empty string."""

    job: Job
    sandbox_id: str
    owner_id: str
    # Id of the request that the job is for.
    request_id: str = ""


class Lane:
    """Slots for long jobs: those that always take long, and those that an agent server can delay.

    An owner gets a slot while they have none, or fewer than are free. One owner thus occupies at most half of the
    slots, and an owner without a slot gets one, however many other owners there are.
    """

    def __init__(self, slots: int, *, in_sandbox: int = MAX_IN_SANDBOX) -> None:
        self._free, self._max_in_sandbox = slots, in_sandbox
        self._of_owner = Counter[str]()
        self._in_sandbox = Counter[tuple[str, str]]()
        self._waiting: dict[str, dict[Job, LaneJob]] = {}
        self._lock = threading.Lock()

    def enter(self, work: LaneJob) -> bool:
        """Take a slot. False: no slot is free for this owner or this sandbox, and the job is remembered."""
        with self._lock:
            if not self._has_slot(work):
                self._remember(work)
                return False
            self._count(work, 1)
            self._remove(work)
            return True

    def leave(self, work: LaneJob) -> LaneJob | None:
        """Free the slot. Returns a waiting job that may take it, from the first owner in the queue with such a job."""
        with self._lock:
            self._count(work, -1)
            for owner_id, jobs in self._waiting.items():
                if self._has_share(owner_id) and (found := self._find(jobs)) is not None:
                    self._remove(found)
                    if owner_id in self._waiting:  # moved behind the other owners
                        self._waiting[owner_id] = self._waiting.pop(owner_id)
                    return found
            return None

    @property
    def retry_seconds(self) -> float:
        """Delay before a job without a slot retries. It grows with the number of waiting jobs."""
        with self._lock:
            waiting = sum(map(len, self._waiting.values()))
        return min(MAX_SECONDS, max(BUSY_SECONDS, waiting / RETRIES_A_SECOND))

    def _has_slot(self, work: LaneJob) -> bool:
        return self._has_share(work.owner_id) and self._in_sandbox[_key(work)] < self._max_in_sandbox

    def _has_share(self, owner_id: str) -> bool:
        held = self._of_owner[owner_id]
        return held == 0 or held < self._free

    def _find(self, jobs: dict[Job, LaneJob]) -> LaneJob | None:
        return next((work for work in jobs.values() if self._has_slot(work)), None)

    def _count(self, work: LaneJob, number: int) -> None:
        self._free -= number
        _add(self._of_owner, work.owner_id, number)
        _add(self._in_sandbox, _key(work), number)

    def _remember(self, work: LaneJob) -> None:
        jobs = self._waiting.setdefault(work.owner_id, {})
        if len(jobs) < MAX_REMEMBERED:
            jobs.setdefault(work.job, work._replace(request_id=request_id.get()))

    def _remove(self, work: LaneJob) -> None:
        jobs = self._waiting.get(work.owner_id, {})
        jobs.pop(work.job, None)
        if not jobs:
            self._waiting.pop(work.owner_id, None)


def _add(counter: Counter[Key], key: Key, number: int) -> None:
    counter[key] += number
    if not counter[key]:
        del counter[key]


def _key(work: LaneJob) -> tuple[str, str]:
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
    # Runs leased rows. A run may outlast its job.
    runs: LongRuns
    # Slots for runs on conversations and start tasks, which call agent servers.
    agents: Lane
    # Slots for sandboxes that boot.
    boots: Lane
    # Pulls of images.
    pulls: SharedCalls
    # Slots for readings of logs: their engine may hang, and other jobs need threads, too.
    logs: Lane = field(default_factory=lambda: Lane(MAX_READINGS, in_sandbox=1))
    # Set once the engine has responded and proved to be this node's. Until then nothing acts on the node's sandboxes.
    engine_checked: threading.Event = field(default_factory=threading.Event)
    # Ids of the sandboxes whose status checks wait for a thread.
    waiting_checks: set[str] = field(default_factory=set)
    # Names of the containers of sandboxes that moved to other nodes, which the engine did not remove.
    unreaped: set[str] = field(default_factory=set)
    # Held during the removal of a stale container: Docker answers a second request before the first one has ended.
    reaping: threading.Lock = field(default_factory=threading.Lock)
    # When the engine last failed to pause or remove these containers, by name and the monotonic clock.
    failed_at: dict[str, float] = field(default_factory=dict)
    # When sandboxes were last restarted because of their disks, by container name and the monotonic clock.
    repaired_at: dict[str, float] = field(default_factory=dict)
    # Names of the running containers whose disks reject writes, as found by the last resync.
    failed_disks: set[str] = field(default_factory=set)
    # The network of this node's sandboxes.
    network: Isolation = field(default_factory=Isolation)
    # Checks whether this machine can take new sandboxes. For slower checks, these return the last result of a loop.
    node_checks: list[NodeCheck] = field(default_factory=list)
    # Checks for what does not work on this machine, although it takes new sandboxes.
    impairment_checks: list[NodeCheck] = field(default_factory=list)

    def check_node(self) -> str | None:
        """Return why this node takes no new sandboxes; None if it takes them."""
        return _join(self.node_checks)

    def find_impairment(self) -> str | None:
        """Return what does not work on this node, although it takes new sandboxes; None: all works."""
        return _join(self.impairment_checks)

    def renew_network(self, sandbox: Sandbox) -> None:
        """Update a sandbox's network rules when its owner's settings change. The next resync retries a failure."""
        with suppress(EngineError):
            self.network.renew(sandbox)

    def agent_server(self, sandbox: Sandbox, **options: Any) -> AgentServer | None:
        """Return a client for a sandbox's agent server at the row's URL; None if the row has no URL."""
        url = agent_server(sandbox.exposed_urls)
        return self.agent_server_at(url, sandbox, **options) if url else None

    def agent_server_at(
        self, url: str, sandbox: Sandbox, *, conversation_id: str | None = None, redact: Redact = lambda text: text
    ) -> AgentServer:
        """Return a client for a sandbox's agent server at this URL.

        The texts of its errors contain no stored secret that the sandbox may know. Only an error makes it read these.

        Args:
            conversation_id: the requests' conversation; the secrets of its start request are removed, however old.
            redact: an additional redaction of the texts.
        """
        hide = partial(self.hide_secrets, sandbox, conversation_id)
        key = self.vault.decrypt(sandbox.session_key)
        return AgentServer(url, key, self.http, lambda text: redact(hide(text)))

    def hide_secrets(self, sandbox: Sandbox, conversation_id: str | None, text: str) -> str:
        """Redact every stored secret that the sandbox may know, and those of a conversation's start request.

        They are read at each call. If they can't be read, nothing of the text is returned.
        """
        try:
            with self.database.reading() as session:
                return known_secrets.redact_for_sandbox(session, self.vault, sandbox, conversation_id)(text)
        except (ValueError, *UNAVAILABLE):
            return HIDDEN_TEXT


def _join(checks: Iterable[NodeCheck]) -> str | None:
    return "; ".join(reason for check in checks if (reason := check())) or None

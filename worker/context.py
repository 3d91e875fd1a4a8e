"""Worker context: the objects that all jobs of a worker process share."""

from concurrent.futures import Executor
from dataclasses import dataclass

import httpx

from shared.crypto import Vault
from shared.db.database import Database
from shared.models import Sandbox
from shared.queue.broker import Publisher
from shared.redaction import Redact
from shared.sandboxes.queries import agent_server
from shared.settings import Settings
from worker.agent_server.client import AgentServer
from worker.engine.protocol import Engine
from worker.leasing.agent_lane import AgentLane
from worker.leasing.lease_renewer import LeaseRenewer
from worker.settings import WorkerSettings


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

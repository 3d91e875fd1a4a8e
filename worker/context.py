"""What a worker process is made of, put together once."""

from concurrent.futures import Executor
from dataclasses import dataclass

import httpx

from shared.crypto import Vault
from shared.db.database import Database
from shared.models import Sandbox
from shared.queue.broker import Publisher
from shared.redaction import Redact, redacting
from shared.sandboxes.availability import agent_server
from shared.settings import Settings
from worker.agent_server.client import AgentServer
from worker.engine.protocol import Engine
from worker.leasing.agent_lane import AgentLane
from worker.leasing.lease_renewer import LeaseRenewer
from worker.settings import WorkerSettings


@dataclass(frozen=True)
class WorkerContext:
    """Everything a job needs; jobs share it, threads and all."""

    shared: Settings
    settings: WorkerSettings
    database: Database
    vault: Vault
    engine: Engine
    publisher: Publisher
    renewer: LeaseRenewer
    http: httpx.Client
    # Where looks are taken (worker.looks).
    looks: Executor
    # Where agent servers are asked while their containers are being thawed (worker.sandbox_server).
    probes: Executor
    # Label of our containers: another installation's on the same engine are none of our business.
    installation: str
    # Bounds the job threads that wait for agent servers.
    lane: AgentLane

    def agent_server(
        self, sandbox: Sandbox, url: str | None = None, redact: Redact | None = None
    ) -> AgentServer | None:
        """The agent server of a sandbox at `url`, or at the URL its row has; None when it has none."""
        url = url or agent_server(sandbox.exposed_urls)
        if url is None:
            return None
        key = self.vault.decrypt(sandbox.session_key)
        return AgentServer(url, key, self.http, redact or redacting([key]))

"""A sandbox's agent server from boot to stop: its configuration, its probes, its init request, its interrupts."""

import time
from concurrent.futures import Future
from math import inf

import structlog

from shared.agent_server.errors import AgentServerError, ResponseTooLarge, WrongServer
from shared.conversations import queries as conversation_queries
from shared.db.database import StoreError
from shared.errors import LeaseLost
from shared.models import Sandbox
from shared.redaction import redacting
from shared.sandboxes.status import was_restarted
from shared.states import PAUSING, Desired, Status
from worker.agent_server.client import AgentServer
from worker.agent_server.transport import timeout
from worker.context import WorkerContext
from worker.engine.protocol import ContainerStatus
from worker.sandboxes.container_spec import deferred_init_config, init_config, server_config
from worker.sandboxes.planner import Health

log = structlog.get_logger()

# The timeout of all interrupts together: a pause, a stop or a delete waits for them.
INTERRUPT_SECONDS = 5.0
# The timeout of a status check's probe: a newer desired state waits for the lease until then.
CHECK_SECONDS = 5.0
# Pauses between probes of a booting server, in seconds: the first, the longest, and the factor between two pauses.
FIRST_PAUSE, LONGEST_PAUSE, GROWTH = 0.02, 0.25, 1.5


class NotAwaitingInit(WrongServer):
    """The agent server was booted for the warm pool, and does not await its init request."""

    reason = "not_dormant"


class SandboxServer:
    """The agent server of one sandbox, at any of its URLs."""

    def __init__(self, context: WorkerContext, sandbox: Sandbox, probe_seconds: float = inf) -> None:
        """Take the row as claimed by the worker, which keeps it up to date.

        Args:
            probe_seconds: total timeout of the requests of one probe.
        """
        self._context = context
        self._sandbox = sandbox
        self._probe_seconds = probe_seconds
        # The result of the probe that was sent before the container was unpaused; None: no such probe is under way.
        self._early_probe: Future[bool] | None = None

    def config(self) -> bytes:
        """The configuration file that the agent server reads at boot.

        It is for the sandbox's owner, or, in the warm pool, for a server that awaits its init request.
        """
        # Web pages with access to the API have access to agent servers, too.
        origins = [self._context.shared.public_url, *self._context.shared.cors_origin_list]
        if self._sandbox.owner_id is None and self._sandbox.boot_key is not None:
            return deferred_init_config(self._context.vault.decrypt(self._sandbox.boot_key), origins=origins)
        return server_config(self._session_key(), origins=origins, **self._webhook())

    def probe_early(self, url: str) -> None:
        """Probe a paused server in the background: it responds when it is unpaused, before the engine reports that."""
        self._early_probe = self._context.probes.submit(self._at(url).accepts_key)

    def probe(self, url: str, *, keys_confirmed: bool) -> Health:
        """The server's health.

        Args:
            keys_confirmed: the server accepted its keys in this run, or was unpaused after it was ready.

        Raises:
            WrongServer: another server responds at the URL, or a server that can't be this sandbox's.
        """
        with timeout(self._probe_seconds):
            return self._probe(self._at(url), keys_confirmed=keys_confirmed)

    def _probe(self, server: AgentServer, *, keys_confirmed: bool) -> Health:
        if keys_confirmed and (self._has_responded_early() or server.accepts_key()):
            return Health.READY
        # Someone else may have booted it since its init, with the configuration of the warm pool.
        if self._sandbox.boot_key is not None:
            awaits_init = server.is_dormant()
            if self._sandbox.owner_id is None:
                return _warm_health(server, awaits_init)
            if awaits_init:
                return Health.AWAITING_INIT
        return Health.READY if not keys_confirmed and server.is_ready() else Health.SILENT

    def initialize(self, url: str) -> bool:
        """Send the init request: the server gets its owner's keys and webhooks.

        Returns:
            Whether the server accepted the request. If not, it may be initialized already.

        Raises:
            AgentServerError: the server rejected the request, or its result is unknown.
        """
        if self._sandbox.boot_key is None:
            return False
        config = init_config(self._session_key(), **self._webhook())
        server = self._at(url, config["secret_key"])
        return server.initialize(self._context.vault.decrypt(self._sandbox.boot_key), config)

    def interrupt_runs(self, url: str) -> None:
        """Interrupt the server's running agents, which would keep it from stopping in time: best effort.

        Agents continue when the sandbox runs again, after a resume or in another container. The worker writes this
        before it interrupts them, so none is lost if it dies in between. No error of the agent server is raised, and
        all requests have one timeout together: a pause, a stop or a delete follows whatever the result.

        Raises:
            LeaseLost: another worker owns the sandbox.
            StoreError: the store does not respond.
        """
        try:
            with timeout(INTERRUPT_SECONDS):
                server = self._at(url)
                running = self._find_running(server)
                self._continue_later(running)
                for conversation_id in running:
                    server.interrupt(conversation_id)
        except AgentServerError as error:
            log.info("not_interrupted", sandbox=self._sandbox.id, why=type(error).__name__)
        except (LeaseLost, StoreError):
            raise
        except Exception as error:
            log.exception("not_interrupted", sandbox=self._sandbox.id, why=type(error).__name__)

    def _find_running(self, server: AgentServer) -> list[str]:
        """The ids of the conversations with a running agent: the stored ones if the server's list is too large.

        A server lists the whole documents of its conversations, which grow with each call of a model.
        """
        try:
            return server.find_running()
        except ResponseTooLarge:
            with self._context.database.reading() as session:
                return conversation_queries.list_running(session, self._sandbox.id)

    def _continue_later(self, running: list[str]) -> None:
        if running and self._sandbox.desired != Desired.DELETED:
            with self._context.database.transaction() as session:
                conversation_queries.continue_later(session, self._sandbox, running)

    def awaits_init(self) -> bool:
        """Whether the sandbox was claimed from the warm pool and was never ready since.

        Its server needs no probe before its init request.
        """
        claimed = self._sandbox.boot_key is not None and self._sandbox.owner_id is not None
        return claimed and self._sandbox.ready_at is None

    def is_relevant(self, *, unapplied: bool) -> bool:
        """Whether the plan for the desired state depends on the server's health."""
        desired = self._sandbox.desired
        return desired == Desired.RUNNING or (desired in PAUSING and not unapplied)

    def _has_responded_early(self) -> bool:
        """Whether the early probe succeeded; it counts for one call, and only if a thread was free to send it."""
        probe, self._early_probe = self._early_probe, None
        return probe is not None and not probe.cancel() and probe.result()

    def _at(self, url: str, *secrets: str) -> AgentServer:
        def redact(text: str) -> str:
            return redacting(secrets)(text)

        return self._context.agent_server_at(url, self._sandbox, redact=redact)

    def _webhook(self) -> dict[str, str]:
        settings = self._context.settings
        return {"node_id": settings.node, "webhook_url": settings.webhook_url}

    def _session_key(self) -> str:
        return self._context.vault.decrypt(self._sandbox.session_key)


class ReadinessTimer:
    """The wait of a run for the agent server's first response."""

    def __init__(self, timeout: float, silent_seconds: float) -> None:
        """Wait for `timeout` seconds in all, of which `silent_seconds` have passed before this run."""
        self._timeout = timeout
        self._before = silent_seconds
        self._since: float | None = None
        self._pause = FIRST_PAUSE

    @property
    def waited(self) -> float:
        """Seconds without a response, including those before this run."""
        return self._before + (0.0 if self._since is None else time.monotonic() - self._since)

    @property
    def is_over(self) -> bool:
        return self.waited >= self._timeout

    def is_left_to_monitor(self, sandbox: Sandbox, observed: ContainerStatus) -> bool:
        """Whether no boot is awaited: the server was ready since its container's last start.

        Only the health monitor knows whether the node is cut off (decision 79), so that the silence is no failure.
        """
        was_ready = sandbox.status == Status.RUNNING and sandbox.generation == sandbox.observed_generation
        return was_ready and not self.is_over and not was_restarted(sandbox, observed.started_at)

    def begin(self) -> None:
        """Start the wait, unless it was started already."""
        if self._since is None:
            self._since, self._pause = time.monotonic(), FIRST_PAUSE

    def pause(self) -> None:
        """Sleep until the next probe."""
        time.sleep(self._pause)
        self._pause = min(self._pause * GROWTH, LONGEST_PAUSE)

    def reset(self) -> None:
        """Reset the wait for a newer generation."""
        self._before, self._since = 0.0, None


def _warm_health(server: AgentServer, awaits_init: bool | None) -> Health:
    if awaits_init is None:
        return Health.SILENT
    if not awaits_init:
        raise NotAwaitingInit("the agent server does not await an init request: it does not support deferred init")
    server.warm_up()
    return Health.READY

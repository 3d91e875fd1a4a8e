"""A sandbox's agent server, from its boot to its end: what it is told, and what it says of itself."""

from concurrent.futures import Future

import structlog
from sqlalchemy.exc import SQLAlchemyError

from shared.conversations import queries as conversation_queries
from shared.errors import LeaseLost
from shared.models import Sandbox
from shared.states import Desired
from worker.agent_server.cancellable_transport import timeout
from worker.agent_server.client import AgentServer
from worker.agent_server.errors import AgentServerError, WrongServer
from worker.context import WorkerContext
from worker.sandboxes.container_spec import dormant_config, init_config, server_config
from worker.sandboxes.planner import Health

log = structlog.get_logger()

# For all interruptions of a pause, a stop or a delete, which wait for them.
INTERRUPT_SECONDS = 5.0


class NotDormant(WrongServer):
    """It was booted for the warm pool, and does not wait to be told whose it is."""

    reason = "not_dormant"


class SandboxServer:
    """The server of one sandbox, wherever it listens."""

    def __init__(self, context: WorkerContext, sandbox: Sandbox) -> None:
        """Take the row as claimed by the worker; it is kept up to date there."""
        self._context = context
        self._sandbox = sandbox
        self._question: Future[bool] | None = None

    def config(self) -> bytes:
        """The file that it reads when it boots: for its owner, or, in the warm pool, for nobody yet."""
        # Pages that may ask the API ask agent servers, too.
        origins = [self._context.shared.public_url, *self._context.shared.cors_origin_list]
        if self._sandbox.owner_id is None and self._sandbox.boot_key is not None:
            return dormant_config(self._context.vault.decrypt(self._sandbox.boot_key), origins=origins)
        return server_config(self._session_key(), webhook_url=self._context.shared.webhook_url, origins=origins)

    def ask_ahead(self, url: str) -> None:
        """Ask a frozen one, which answers as soon as it is thawed: before the engine has said that it is."""
        self._question = self._context.probes.submit(self._at(url).answers)

    def listen(self, url: str, *, keys_confirmed: bool) -> Health:
        """What it says.

        Args:
            vouched: it was told its keys just now, or has not booted since it had them.

        Raises:
            WrongServer: something else answers there, or one that can't be this sandbox's.
        """
        server = self._at(url)
        if keys_confirmed:
            return Health.READY if self._has_answered() or server.answers() else Health.SILENT
        if self._sandbox.boot_key is not None:
            dormant = server.is_dormant()
            if self._sandbox.owner_id is None:
                return _as_member(server, dormant)
            if dormant:
                return Health.DORMANT
        return Health.READY if server.is_ready() else Health.SILENT

    def initialize(self, url: str) -> bool:
        """Tell it whose it is.

        Returns:
            Whether it took that now; if not, it may know already.

        Raises:
            AgentServerError: it was not taken, or nobody knows.
        """
        if self._sandbox.boot_key is None:
            return False
        config = init_config(self._session_key(), webhook_url=self._context.shared.webhook_url)
        return self._at(url).initialize(self._context.vault.decrypt(self._sandbox.boot_key), config)

    def interrupt_runs(self, url: str) -> None:
        """End what its agents do, as they would keep it from ending in time: best effort.

        Those that a pause ends go on after the resume. That is written before they are interrupted: a worker that
        dies in between leaves none behind. Of the agent server nothing is raised, and all of it has one timeout: a
        pause, a stop and a delete follow whatever it answers.

        Raises:
            LeaseLost: another worker owns the sandbox.
            SQLAlchemyError: the store does not answer.
        """
        try:
            with timeout(INTERRUPT_SECONDS):
                server = self._at(url)
                running = server.find_running()
                self._continue_later(running)
                for conversation_id in running:
                    server.interrupt(conversation_id)
        except AgentServerError as error:
            log.info("not_interrupted", sandbox=self._sandbox.id, why=type(error).__name__)
        except (LeaseLost, SQLAlchemyError):
            raise
        except Exception as error:
            log.exception("not_interrupted", sandbox=self._sandbox.id, why=type(error).__name__)

    def _continue_later(self, running: list[str]) -> None:
        if running and Desired(self._sandbox.desired).is_paused:
            with self._context.database.transaction() as session:
                conversation_queries.continue_later(session, self._sandbox, running)

    def waits_for_its_owner(self) -> bool:
        """Whether it was claimed from the warm pool, and nobody has heard of it since: no need to ask if it is told."""
        claimed = self._sandbox.boot_key is not None and self._sandbox.owner_id is not None
        return claimed and self._sandbox.ready_at is None

    def is_relevant(self, *, fresh: bool) -> bool:
        """Whether what it says matters to what is wished."""
        wish = Desired(self._sandbox.desired)
        return wish == Desired.RUNNING or (wish.is_paused and not fresh)

    def _has_answered(self) -> bool:
        """Whether what was asked ahead was answered; that counts once, and only if a thread was free to ask it."""
        question, self._question = self._question, None
        return question is not None and not question.cancel() and question.result()

    def _at(self, url: str) -> AgentServer:
        server = self._context.agent_server(self._sandbox, url)
        if server is None:
            raise LookupError(url)
        return server

    def _session_key(self) -> str:
        return self._context.vault.decrypt(self._sandbox.session_key)


def _as_member(server: AgentServer, dormant: bool | None) -> Health:
    if dormant is None:
        return Health.SILENT
    if not dormant:
        raise NotDormant("it does not wait to be told whose it is: its agent server knows no deferred init")
    server.warm_up()
    return Health.READY

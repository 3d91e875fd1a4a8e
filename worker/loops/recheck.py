"""Looks at what changed behind our back: in threads of their own, for jobs may keep all the others busy for minutes."""

from concurrent.futures import ThreadPoolExecutor

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import col

from shared.clock import after
from shared.leasing import leases
from shared.models import Sandbox
from shared.observability import failpoints
from shared.queue.jobs import CheckSandbox
from worker.agent_server.cancellable_transport import timeout
from worker.context import WorkerContext
from worker.sandboxes.reconciler import refresh_status

log = structlog.get_logger()

# A look is some queries and one or two calls to the engine.
THREADS = 4
# For what a look asks of an agent server: a newer desired state waits for the lease meanwhile.
ASK_SECONDS = 5.0


def open_threads() -> ThreadPoolExecutor:
    """The threads that looks are taken in."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix="look")


def recheck(context: WorkerContext, sandbox_id: str) -> None:
    """Have a sandbox looked at now. Its row asks for it, too: a look that comes to nothing is made up for."""
    _ask(context, sandbox_id)
    context.looks.submit(_look, context, sandbox_id)


def report_unresponsive(context: WorkerContext, sandbox_id: str, seconds: float) -> None:
    """Have it written down, here and now, that an agent server has not answered for so long, if it still does not."""
    _ask(context, sandbox_id)
    _look(context, sandbox_id, seconds)


def check(context: WorkerContext, sandbox_id: str) -> None:
    """Have a job look at a sandbox soon: for what may take longer than a look."""
    _ask(context, sandbox_id)
    context.publisher.publish(CheckSandbox(sandbox_id, context.settings.node))


def _ask(context: WorkerContext, sandbox_id: str) -> None:
    """What happens to a container says nothing of a sandbox that lives on another node by now."""
    here, by = col(Sandbox.node_id) == context.settings.node, after(context.shared.republish_seconds)
    try:
        with context.database.transaction() as session:
            leases.mark_due(session, Sandbox, sandbox_id, by, where=here)
    except SQLAlchemyError as error:
        # A row that somebody has locked must not end the look at others; the next resync asks again.
        log.warning("look_not_asked_for", sandbox=sandbox_id, error=type(error).__name__)


def _look(context: WorkerContext, sandbox_id: str, silent_seconds: float = 0.0) -> None:
    failpoints.begin("looks")
    try:
        with timeout(ASK_SECONDS):
            done = refresh_status(context, sandbox_id, silent_seconds)
        if not done:
            context.publisher.publish(CheckSandbox(sandbox_id, context.settings.node))
    except SQLAlchemyError as error:
        log.warning("look_failed", sandbox=sandbox_id, error=type(error).__name__)

"""Status checks after drift. They have their own threads, because jobs may occupy all others for minutes."""

from concurrent.futures import ThreadPoolExecutor

import structlog

from shared.clock import after
from shared.db.database import StoreError
from shared.leasing import leases
from shared.models import Sandbox
from shared.observability import failpoints
from shared.queue.jobs import CheckSandbox
from shared.sandboxes import desired_state
from worker.context import WorkerContext
from worker.sandboxes.reconciler import refresh_status

log = structlog.get_logger()

# A status check is a few queries and one or two calls to the engine. One that takes long continues in another thread.
THREADS = 4


def open_threads() -> ThreadPoolExecutor:
    """Create the executor of status checks."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix="check")


def recheck(context: WorkerContext, sandbox_id: str) -> None:
    """Start a status check of a sandbox in a thread, and mark its row due: the sweep retries a failed check.

    A check that still waits for a thread will see this change, too, so no second check is started. The row is marked
    even then, because a job may have checked it since.
    """
    _mark_due(context, sandbox_id)
    if sandbox_id not in context.waiting_checks:
        context.waiting_checks.add(sandbox_id)
        context.status_checks.submit(_begin_check, context, sandbox_id)


def report_unresponsive(context: WorkerContext, sandbox_id: str, seconds: float) -> None:
    """Record that an agent server has not responded for `seconds`, if it still does not respond."""
    _mark_due(context, sandbox_id)
    _check(context, sandbox_id, seconds)


def check(context: WorkerContext, sandbox_id: str) -> None:
    """Enqueue a job that checks a sandbox: for work that may take longer than a status check."""
    _mark_due(context, sandbox_id)
    context.publisher.publish(CheckSandbox(sandbox_id, context.settings.node))


def replace_container(context: WorkerContext, sandbox_id: str) -> None:
    """Have a sandbox reconciled as a new generation: its container is replaced, and its files are kept."""
    due_at = after(context.shared.republish_seconds)
    with context.database.transaction() as session:
        bumped = desired_state.bump_generation(session, sandbox_id, due_at=due_at)
    log.info("replacing_container", sandbox=sandbox_id, generation_bumped=bumped)
    context.publisher.publish(CheckSandbox(sandbox_id, context.settings.node))


def _mark_due(context: WorkerContext, sandbox_id: str) -> None:
    """Mark the row due, unless the sandbox has moved to another node: this node's containers don't concern it then."""
    due_at = after(context.shared.republish_seconds)
    try:
        with context.database.transaction() as session:
            leases.mark_due(session, Sandbox, sandbox_id, due_at, node_id=context.settings.node)
    except StoreError as error:
        # A locked row must not end the checks of other rows. The next resync marks it due.
        log.warning("check_not_marked_due", sandbox=sandbox_id, error=type(error).__name__)


def _begin_check(context: WorkerContext, sandbox_id: str) -> None:
    context.waiting_checks.discard(sandbox_id)
    _check(context, sandbox_id)


def _check(context: WorkerContext, sandbox_id: str, silent_seconds: float = 0.0) -> None:
    failpoints.begin("status_checks")
    try:
        if not refresh_status(context, sandbox_id, silent_seconds):
            context.publisher.publish(CheckSandbox(sandbox_id, context.settings.node))
    except StoreError as error:
        log.warning("check_failed", sandbox=sandbox_id, error=type(error).__name__)

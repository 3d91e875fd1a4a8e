"""The logs of sandboxes' containers: kept before a container is removed, and read while it exists.

No action depends on a log. So the time to read one is bounded, and an error while it is read is only logged. It never
makes an action on the sandbox fail or repeat.
"""

from datetime import datetime
from functools import partial

import structlog

from shared.clock import after, now
from shared.container_logs import kept_logs
from shared.container_logs.kept_logs import NO_CONTAINER, LogCause
from shared.container_logs.printed_text import StoredText, read_stored, write_stored
from shared.conversations import known_secrets
from shared.db.database import StoreConflict, StoreError
from shared.models import Sandbox, SandboxLog
from shared.queue.jobs import ReadLog
from shared.states import Status
from worker.context import LaneJob, WorkerContext
from worker.engine.protocol import ContainerState, ContainerStatus, EngineError
from worker.lease_runner import Retry, taking_slot
from worker.sandboxes.container_spec import container_name

log = structlog.get_logger()

# Containers in other states have printed nothing, or no longer exist.
PRINTING = (ContainerState.RUNNING, ContainerState.PAUSED, ContainerState.EXITED, ContainerState.DEAD)
# A reading of at most this age serves another request as well. The API accepts readings of up to one second, and the
# clocks of its machine and of this one may differ: a request that waits must get a reading.
FRESH_SECONDS = 0.25
# How long the log of an existing container is stored if no logs are to be kept.
MIN_KEPT_SECONDS = 60.0
DAY_SECONDS = 24 * 60 * 60
# Max lines and characters of a log in the detail of a failure.
LAST_LINES, LAST_CHARACTERS = 30, 8_000
NOTHING = StoredText()


def keep_log(context: WorkerContext, sandbox: Sandbox, observed: ContainerStatus, cause: LogCause) -> str:
    """Keep the log of a container before its removal, or because it has failed. Never raises.

    Args:
        sandbox: the row as its worker leased it; the container is known to be this row's.

    Returns:
        The log's last lines, without their times.
    """
    if observed.state not in PRINTING:
        return ""
    stored = NOTHING
    try:
        read_at = now()
        stored = _read(context, sandbox)
        if context.settings.container_log_days and sandbox.owner_id is not None:
            _keep(context, _row(context, sandbox, read_at, observed.container_id, cause, stored))
    except Exception as error:  # noqa: BLE001 - the container is removed anyway; it is logged
        _report(sandbox.id, error)
    lines = [line.text for line in read_stored(stored.text)][-LAST_LINES:]
    return "\n".join(lines)[-LAST_CHARACTERS:].strip()


def keep_removed_log(context: WorkerContext, sandbox: Sandbox, observed: ContainerStatus, cause: LogCause) -> None:
    """Keep the log of a container before its removal, unless it is a warm one's, or may be another user's."""
    is_owners = sandbox.owner_id is not None and not is_in_doubt(sandbox)
    if is_owners and context.settings.container_log_days:
        keep_log(context, sandbox, observed, cause)


def read_live(context: WorkerContext, sandbox_id: str) -> None:
    """Read the log of a sandbox's container for the requests that wait for it.

    If another job is reading it, or its owner has no slot left, the job is enqueued again when that has changed.
    """
    context.runs.run(partial(_read_live, context, sandbox_id))


def is_in_doubt(sandbox: Sandbox) -> bool:
    """Whether the container may be another row's: it was created for the warm pool, and has served no owner yet."""
    return sandbox.boot_key is not None and sandbox.ready_at is None


def _read_live(context: WorkerContext, sandbox_id: str) -> bool:
    try:
        with context.database.reading() as session:
            sandbox = session.get(Sandbox, sandbox_id)
        if sandbox is None or sandbox.node_id != context.settings.node or sandbox.owner_id is None:
            return False
        job = LaneJob(ReadLog(sandbox_id, sandbox.node_id), sandbox_id, sandbox.owner_id)
        with taking_slot(context, context.logs, job):
            if not _is_fresh(context, sandbox_id):
                _keep(context, _read_row(context, sandbox))
    except Retry as retry:
        log.info("log_not_read", sandbox=sandbox_id, why=str(retry))
    except (EngineError, StoreError) as error:
        _report(sandbox_id, error)
    return True


def _is_fresh(context: WorkerContext, sandbox_id: str) -> bool:
    """Whether the log was just read. It is checked in a slot: until then, another job may have been reading it."""
    with context.database.reading() as session:
        last = kept_logs.find_last_reading(session, sandbox_id)
    return last is not None and (now() - last).total_seconds() < FRESH_SECONDS


def _read_row(context: WorkerContext, sandbox: Sandbox) -> SandboxLog:
    read_at = now()
    observed = context.engine.observe(container_name(sandbox.id))
    if observed.state not in PRINTING or sandbox.status == Status.DELETED or is_in_doubt(sandbox):
        return _row(context, sandbox, read_at)
    runs = observed.state in (ContainerState.RUNNING, ContainerState.PAUSED)
    cause = None if runs else LogCause.EXITED
    return _row(context, sandbox, read_at, observed.container_id, cause, _read(context, sandbox))


def _read(context: WorkerContext, sandbox: Sandbox) -> StoredText:
    printed = context.engine.read_log(container_name(sandbox.id))
    with context.database.reading() as session:
        secrets = known_secrets.find_in_sandbox(session, context.vault, sandbox)
    return write_stored(printed, secrets)


def _row(
    context: WorkerContext,
    sandbox: Sandbox,
    read_at: datetime,
    container_id: str = NO_CONTAINER,
    cause: LogCause | None = None,
    stored: StoredText = NOTHING,
) -> SandboxLog:
    kept_seconds = max(context.settings.container_log_days * DAY_SECONDS, MIN_KEPT_SECONDS)
    return SandboxLog(
        sandbox_id=sandbox.id,
        owner_id=sandbox.owner_id or "",
        container_id=container_id,
        cause=cause,
        text=stored.text,
        is_cut=stored.is_cut,
        read_at=read_at,
        expires_at=after(kept_seconds),
    )


def _keep(context: WorkerContext, row: SandboxLog) -> None:
    values = row.model_dump()
    try:
        with context.database.transaction() as session:
            kept_logs.keep(session, row)
    except StoreConflict:
        with context.database.transaction() as session:
            kept_logs.keep(session, SandboxLog(**values))


def _report(sandbox_id: str, error: Exception) -> None:
    trace = not isinstance(error, EngineError | StoreError)
    log.warning("log_not_kept", sandbox=sandbox_id, error=type(error).__name__, exc_info=trace)

"""Sandboxes: start, list, pause, resume, delete.

Each command commits a desired state, enqueues its jobs, waits if the caller asked for it, and responds.
"""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi.exceptions import RequestValidationError

from api.errors.handlers import validation_entry
from api.errors.openapi import error_responses
from api.lists import ListQuery, ListRoute
from api.realtime.completion_waiter import AwaitedRow
from api.request.authentication import Caller, CurrentCaller, UserRoute
from api.request.command_options import Accepted, IdempotencyOption, IdempotentRequest, StoredResponse, WaitOption
from api.request.context import Context, ContextDep, JobQueue, JobQueueDep
from api.request.query_params import Ids, Limit, PageId, RowId
from api.routes.v1.sandbox_interrupt import interrupt_runs
from api.schemas.page_text import write_page
from api.schemas.v1.fields import PageOf, Success
from api.schemas.v1.sandboxes import (
    OwnDeadlines,
    Resumed,
    SandboxInfo,
    TransitionInfo,
    serialize_sandbox,
    write_sandbox,
)
from shared.clock import now
from shared.db.database import Session
from shared.ids import find_ids
from shared.models import Sandbox
from shared.queue.jobs import DeleteSandbox, Job, PauseSandbox, ResumeSandbox, StopSandbox
from shared.sandboxes import access as sandbox_access
from shared.sandboxes import deadlines, specs
from shared.sandboxes import lists as sandbox_lists
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes import status as sandbox_status
from shared.sandboxes.desired_state import DesiredStateResult, set_desired_and_commit
from shared.sql import locks
from shared.states import Desired, Status
from shared.warm_pool.start import SandboxStart, start, start_in_one_statement

router = APIRouter(prefix="/sandboxes", tags=["sandboxes"], route_class=UserRoute)
lists = APIRouter(prefix=router.prefix, tags=router.tags, route_class=ListRoute)

OfStatus = Annotated[Literal["STARTING", "RUNNING", "PAUSED", "ERROR"] | None, Query(alias="status__eq")]
TOO_OLD = "the sandbox is already older than that: choose a greater age, or delete it"


@lists.get("/search", response_model=PageOf[SandboxInfo])
async def search_sandboxes(page_id: PageId = None, limit: Limit = 100, status: OfStatus = None) -> ListQuery:
    """A page of the caller's sandboxes, newest first; the filter is an Agent Workspace extension."""
    return ListQuery(lambda context, caller: _search(context, caller, page_id, limit, status))


@router.get("")
def get_sandboxes(
    context: ContextDep, caller: CurrentCaller, ids: Annotated[Ids, Query(alias="id")]
) -> list[SandboxInfo | None]:
    """The caller's sandboxes with these ids, in order; null for an unknown or deleted one, and for any other text."""
    hexes = find_ids(ids)
    with context.database.reading() as session:
        found = sandbox_queries.get_many(session, hexes, caller.id)
        shown = {info.id: info for info in _show(session, context, caller, [row for row in found if row])}
    return [shown[row.id] if row else None for row in found]


@router.get("/{sandbox_id}")
def get_sandbox(context: ContextDep, caller: CurrentCaller, sandbox_id: RowId) -> SandboxInfo:
    """One of the caller's sandboxes (Agent Workspace extension)."""
    with context.database.reading() as session:
        [shown] = _show(session, context, caller, [sandbox_queries.get(session, sandbox_id, caller.id)])
    return shown


@router.get("/{sandbox_id}/transitions")
def list_transitions(context: ContextDep, caller: CurrentCaller, sandbox_id: RowId) -> list[TransitionInfo]:
    """The last thousand changes of a sandbox's status, oldest first (Agent Workspace extension).

    Deleted sandboxes have them too.
    """
    with context.database.reading() as session:
        sandbox = sandbox_queries.get(session, sandbox_id, caller.id, deleted=True)
        moves = sandbox_queries.transitions(session, sandbox.id)
        return [TransitionInfo.model_validate(move, from_attributes=True) for move in moves]


@router.post("", response_model=SandboxInfo, responses=error_responses(404, 429))
async def start_sandbox(
    context: ContextDep,
    caller: CurrentCaller,
    queue: JobQueueDep,
    idempotent: IdempotencyOption,
    wait: WaitOption,
    sandbox_spec_id: str | None = None,
    own: OwnDeadlines | None = None,
) -> Any:
    """Start a sandbox. The body is optional, and an Agent Workspace extension.

    Without a wait, the response shows the sandbox STARTING, without a session key.
    """
    accepted = await context.run_in_turn(_start, context, caller, queue, idempotent, sandbox_spec_id, own)
    waited = await wait.until_complete(accepted.row, jobs=accepted.jobs)
    response = await context.run_in_turn(_read, context, caller, accepted) if waited else accepted.response
    return wait.add_headers(response)


@router.patch("/{sandbox_id}")
def change_deadlines(context: ContextDep, caller: CurrentCaller, sandbox_id: RowId, own: OwnDeadlines) -> SandboxInfo:
    """Change the sandbox's own deadlines (Agent Workspace extension). An empty body, too, counts as activity."""
    with context.database.transaction() as session:
        sandbox = sandbox_queries.get(session, sandbox_id, caller.id, lock=True)
        deadlines.set_own(session, sandbox, own.columns)
        if sandbox.expires_at is not None and sandbox.expires_at <= now() and "max_age_seconds" in own.columns:
            raise RequestValidationError([validation_entry(("body", "max_age_seconds"), TOO_OLD)])
        [shown] = _show(session, context, caller, [sandbox])
    return shown


@router.post("/{sandbox_id}/pause")
async def pause_sandbox(
    context: ContextDep,
    caller: CurrentCaller,
    queue: JobQueueDep,
    wait: WaitOption,
    sandbox_id: RowId,
    kind: Literal["frozen", "stopped"] = "frozen",
) -> Success:
    """Pause the sandbox; pausing a paused one changes nothing.

    `kind=stopped` (Agent Workspace extension) also frees its memory, paused or not; a resume boots it on its files.
    For a caller signed in by cookie, this interrupts the runs of the sandbox's agents; the sandbox is paused only if
    nothing runs in it (decision 32).
    """
    if caller.is_browser and kind == "frozen" and await interrupt_runs(context, caller, sandbox_id):
        return Success()
    desired, job = (Desired.STOPPED, StopSandbox) if kind == "stopped" else (Desired.PAUSED, PauseSandbox)
    accepted = await context.run_in_turn(_set_desired, context, caller, queue, sandbox_id, desired, job)
    await wait.until_complete(accepted.row, jobs=accepted.jobs)
    return accepted.response


@router.post("/{sandbox_id}/resume", responses=error_responses(429))
async def resume_sandbox(
    context: ContextDep, caller: CurrentCaller, queue: JobQueueDep, wait: WaitOption, sandbox_id: RowId
) -> Resumed:
    """Resume the sandbox; resuming a running one changes nothing, one in ERROR is started again."""
    accepted = await context.run_in_turn(_resume, context, caller, queue, sandbox_id)
    await wait.until_complete(accepted.row, jobs=accepted.jobs)
    return accepted.response


@router.delete("/{sandbox_id}")
async def delete_sandbox(
    context: ContextDep, caller: CurrentCaller, queue: JobQueueDep, wait: WaitOption, sandbox_id: RowId
) -> Success:
    """Delete the sandbox, from any state. V1's clients send its id in the query too: that is ignored."""
    accepted = await context.run_in_turn(
        _set_desired, context, caller, queue, sandbox_id, Desired.DELETED, DeleteSandbox
    )
    await wait.until_complete(accepted.row, jobs=accepted.jobs)
    return accepted.response


def _start(
    context: Context,
    caller: Caller,
    queue: JobQueue,
    idempotent: IdempotentRequest,
    spec_id: str | None,
    own: OwnDeadlines | None,
) -> Accepted[SandboxInfo | Response]:
    due_at, limits, columns = queue.due_at, context.settings.quotas, own.columns if own else {}
    if not (limits or idempotent.has_key) and (
        started := start_in_one_statement(
            context.database, context.vault, owner_id=caller.id, spec_id=spec_id, due_at=due_at, own_deadlines=columns
        )
    ):
        return _accepted(started, _serialize_started(context, caller, started))
    with context.database.transaction(may_place=True) as session:
        if (stored := idempotent.find(session)) is not None:
            return _repeated(stored, session.get(Sandbox, stored.document["id"]))
        spec = specs.choose_spec(session, caller.id, spec_id)
        if limits:
            locks.lock_user(session, caller.id)
        started = start(
            session, context.vault, owner_id=caller.id, spec=spec, due_at=due_at, own_deadlines=columns, quotas=limits
        )
        response = _serialize_started(context, caller, started)
        idempotent.keep(session, response)
    return _accepted(started, response)


def _serialize_started(context: Context, caller: Caller, started: SandboxStart) -> SandboxInfo:
    durations = deadlines.in_force(started.sandbox, started.spec)
    return serialize_sandbox(started.sandbox, durations, context.vault, caller.sandbox_urls, started.paused)


def _accepted(started: SandboxStart, response: SandboxInfo) -> Accepted[SandboxInfo | Response]:
    return Accepted(response, _awaited(started.sandbox, Desired.RUNNING), started.jobs, response.paused_sandbox_ids)


def _repeated(stored: StoredResponse, sandbox: Sandbox | None) -> Accepted[SandboxInfo | Response]:
    """The stored response of an earlier request with the same key, and the row of its sandbox."""
    row = AwaitedRow(Sandbox, stored.document["id"], sandbox.generation if sandbox else 0, Desired.RUNNING)
    return Accepted(stored.response, row, paused_sandbox_ids=stored.document.get("paused_sandbox_ids", []))


def _read(context: Context, caller: Caller, accepted: Accepted[SandboxInfo | Response]) -> SandboxInfo | Response:
    """Return the sandbox's current state, or the answer as of the commit if the sandbox was deleted since."""
    row = sandbox_queries.read_current(context.database, accepted.row.row_id, caller.id)
    if row is None:
        return accepted.response
    durations = deadlines.in_force(row, specs.read_spec(context.database, row.spec_id))
    shown = serialize_sandbox(row, durations, context.vault, caller.sandbox_urls)
    return shown.model_copy(update={"paused_sandbox_ids": accepted.paused_sandbox_ids})


def _resume(context: Context, caller: Caller, queue: JobQueue, sandbox_id: str) -> Accepted[Resumed]:
    if not context.settings.quotas:
        result = set_desired_and_commit(context.database, sandbox_id, caller.id, Desired.RUNNING, due_at=queue.due_at)
        if result.shown == Status.ERROR:
            with context.database.transaction() as session:
                sandbox_status.restart_failed(session, sandbox_id)
        job = ResumeSandbox(result.id, result.node_id)
        return Accepted(Resumed(paused_sandbox_ids=[]), _awaited(result, Desired.RUNNING), (job,))
    with context.database.transaction() as session:
        resumed = sandbox_access.resume(session, sandbox_id, caller.id, context.settings.quotas, due_at=queue.due_at)
    response = Resumed(paused_sandbox_ids=[row.id for row in resumed.paused])
    return Accepted(response, _awaited(resumed.sandbox, Desired.RUNNING), resumed.jobs)


def _search(context: Context, caller: Caller, page_id: str | None, limit: int, status: str | None) -> Response:
    page = sandbox_lists.search(context.database, caller.id, page_id, limit, status)
    return write_page(page, write_sandbox, context.vault, caller.sandbox_urls)


def _set_desired(
    context: Context, caller: Caller, queue: JobQueue, sandbox_id: str, desired: Desired, job: type[Job]
) -> Accepted[Success]:
    result = set_desired_and_commit(context.database, sandbox_id, caller.id, desired, due_at=queue.due_at)
    return Accepted(Success(), _awaited(result, desired), (job(result.id, result.node_id),))


def _awaited(sandbox: Sandbox | DesiredStateResult, desired: Desired) -> AwaitedRow:
    return AwaitedRow(Sandbox, sandbox.id, sandbox.generation, desired)


def _show(session: Session, context: Context, caller: Caller, rows: list[Sandbox]) -> list[SandboxInfo]:
    durations = deadlines.in_force_for(session, rows)
    urls = caller.sandbox_urls
    return [serialize_sandbox(row, durations[row.id], context.vault, urls) for row in rows]

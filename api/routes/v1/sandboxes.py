"""Sandboxes: start, list, pause, resume, delete. Each command writes a wish and answers."""

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi.exceptions import RequestValidationError
from sqlmodel import Session

from api.errors.handlers import validation_entry
from api.errors.openapi import error_responses
from api.lists.route import ListResponse, ListRoute
from api.realtime.completion_waiter import AwaitedRow
from api.request.authentication import Caller, CurrentCaller, ForUsers
from api.request.context import Context, ContextDep
from api.request.idempotency import IdempotencyOption, IdempotentRequest
from api.request.jobs import JobQueue, JobQueueDep
from api.request.query_params import Ids, Limit, PageId, RowId
from api.request.wait import Accepted, WaitOption
from api.routes.v1.sandbox_interrupt import interrupt_runs
from api.schemas.page_text import write_page
from api.schemas.v1.deadlines import OwnDeadlines
from api.schemas.v1.sandboxes import Resumed, SandboxInfo, TransitionInfo, show_sandbox, show_transition, write_sandbox
from api.schemas.v1.wire_types import PageOf, Success
from shared.clock import now
from shared.ids import parse_ids
from shared.models import Sandbox
from shared.queue.jobs import DeleteSandbox, Job, PauseSandbox, ResumeSandbox, StartSandbox, StopSandbox
from shared.sandboxes import access as sandbox_access
from shared.sandboxes import create as sandbox_creation
from shared.sandboxes import deadlines, quotas, specs
from shared.sandboxes import lists as sandbox_lists
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes.desired_state import DesiredStateResult as DesiredSandbox
from shared.sandboxes.desired_state import set_desired_and_commit
from shared.states import Desired
from shared.warm_pool import claims as pool_claims
from shared.warm_pool import pool as warm_pool

router = APIRouter(prefix="/sandboxes", tags=["sandboxes"], route_class=ForUsers)
lists = APIRouter(prefix=router.prefix, tags=router.tags, route_class=ListRoute)

MAX_IDS = 100
OfStatus = Annotated[Literal["STARTING", "RUNNING", "PAUSED", "ERROR"] | None, Query(alias="status__eq")]
TOO_OLD = "the sandbox is older than that: delete it, if that is what you want"


@lists.get("/search", response_model=PageOf[SandboxInfo])
async def search_sandboxes(page_id: PageId = None, limit: Limit = 100, status: OfStatus = None) -> ListResponse:
    """A page of the caller's sandboxes, newest first; the filter is ours."""
    return ListResponse(lambda context, caller: _search(context, caller, page_id, limit, status))


@router.get("")
def get_sandboxes(
    context: ContextDep, caller: CurrentCaller, ids: Annotated[Ids, Query(alias="id")]
) -> list[SandboxInfo | None]:
    """The caller's sandboxes of those ids, in order; null for one that is unknown or deleted."""
    hexes = parse_ids(ids, most=MAX_IDS)
    with context.database.reading() as session:
        found = sandbox_queries.get_many(session, hexes, caller.id)
        shown = {info.id: info for info in _show(session, context, caller, [row for row in found if row])}
    return [shown[row.id] if row else None for row in found]


@router.get("/{sandbox_id}")
def get_sandbox(context: ContextDep, caller: CurrentCaller, sandbox_id: RowId) -> SandboxInfo:
    """One of the caller's sandboxes (ours)."""
    with context.database.reading() as session:
        [shown] = _show(session, context, caller, [sandbox_queries.get(session, sandbox_id, caller.id)])
    return shown


@router.get("/{sandbox_id}/transitions")
def list_transitions(context: ContextDep, caller: CurrentCaller, sandbox_id: RowId) -> list[TransitionInfo]:
    """Every move of the sandbox's status, oldest first; of a deleted one too (ours)."""
    with context.database.reading() as session:
        sandbox = sandbox_queries.get(session, sandbox_id, caller.id, deleted=True)
        return [show_transition(move) for move in sandbox_queries.transitions(session, sandbox.id)]


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
    """Wish for a sandbox. The body is ours, and optional.

    It is STARTING in an answer that is not waited for, and so its key is not in it.
    """
    return await wait.see(partial(_start, context, caller, queue, idempotent, sandbox_spec_id, own))


@router.patch("/{sandbox_id}")
def change_deadlines(context: ContextDep, caller: CurrentCaller, sandbox_id: RowId, own: OwnDeadlines) -> SandboxInfo:
    """Change the sandbox's own deadlines; it counts as a use, even with nothing in the body (ours)."""
    with context.database.transaction() as session:
        sandbox = sandbox_queries.get(session, sandbox_id, caller.id, lock=True)
        sandbox_creation.set_deadlines(session, sandbox, own.columns)
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
    """Wish for the sandbox to be paused; pausing a paused one changes nothing.

    With `kind=stopped` (ours) its memory is freed too, frozen or not; a resume boots it on its files. For a page, to
    pause is to stop: what its agents do is interrupted, and only a sandbox in which nothing runs is paused.
    """
    if caller.origin and kind == "frozen" and await interrupt_runs(context, caller, sandbox_id):
        return Success()
    if kind == "stopped":
        return await wait.see(partial(_wish, context, caller, queue, sandbox_id, Desired.STOPPED, StopSandbox))
    return await wait.see(partial(_wish, context, caller, queue, sandbox_id, Desired.PAUSED, PauseSandbox))


@router.post("/{sandbox_id}/resume", responses=error_responses(429))
async def resume_sandbox(
    context: ContextDep, caller: CurrentCaller, queue: JobQueueDep, wait: WaitOption, sandbox_id: RowId
) -> Resumed:
    """Wish for the sandbox to run; resuming a running one changes nothing, one in ERROR is started again."""
    return await wait.see(partial(_resume, context, caller, queue, sandbox_id))


@router.delete("/{sandbox_id}")
async def delete_sandbox(
    context: ContextDep, caller: CurrentCaller, queue: JobQueueDep, wait: WaitOption, sandbox_id: RowId
) -> Success:
    """Wish for the sandbox to be gone, from any state. V1's clients name it in the query too: that is ignored."""
    return await wait.see(partial(_wish, context, caller, queue, sandbox_id, Desired.DELETED, DeleteSandbox))


def _start(
    context: Context,
    caller: Caller,
    queue: JobQueue,
    idempotent: IdempotentRequest,
    spec_id: str | None,
    own: OwnDeadlines | None,
) -> Accepted[Any]:
    limits, columns = context.settings.quotas, own.columns if own else {}
    if not (limits or idempotent.has_key) and (claimed := _claim(context, caller, queue, spec_id, columns)) is not None:
        return claimed
    with context.database.transaction(needs_place=True) as session:
        if (kept := idempotent.find(session)) is not None:
            made = session.get(Sandbox, kept.document["id"])
            return _started(context, caller, made.generation if made else 0, kept.document, kept.answer)
        spec = specs.choose_spec(session, caller.id, spec_id)
        quotas.lock(session, caller.id, limits)
        paused = quotas.admit_create(session, caller.id, limits, spec=spec, due_at=queue.due_at)
        sandbox = warm_pool.claim_or_create(
            session, context.vault, owner_id=caller.id, spec=spec, due_at=queue.due_at, own_deadlines=columns
        )
        answer = show_sandbox(sandbox, deadlines.in_force(sandbox, spec), context.vault, paused)
        idempotent.keep(session, answer)
    jobs = (*_pauses(paused), StartSandbox(sandbox.id, sandbox.node_id))
    return _started(context, caller, sandbox.generation, answer.model_dump(), answer, *jobs)


def _claim(
    context: Context, caller: Caller, queue: JobQueue, spec_id: str | None, columns: dict[str, int | None]
) -> Accepted[Any] | None:
    """The quick way, for who finds a member of the pool and is held against nothing else."""
    found = pool_claims.claim_and_commit(
        context.database, context.vault, owner_id=caller.id, spec_id=spec_id, due_at=queue.due_at, own=columns
    )
    if found is None:
        return None
    sandbox, spec = found
    answer = show_sandbox(sandbox, deadlines.in_force(sandbox, spec), context.vault, [])
    job = StartSandbox(sandbox.id, sandbox.node_id)
    return _started(context, caller, sandbox.generation, answer.model_dump(), answer, job)


def _started(
    context: Context, caller: Caller, generation: int, shown: dict[str, Any], answer: Any, *jobs: Job
) -> Accepted[Any]:
    awaited_row = AwaitedRow(Sandbox, shown["id"], generation, Desired.RUNNING)
    return Accepted(answer, jobs, awaited_row, partial(_look, context, caller, shown, answer))


def _look(context: Context, caller: Caller, shown: dict[str, Any], answer: Any) -> Any:
    """The sandbox as it is by now; if somebody has deleted it meanwhile, as it was."""
    row = sandbox_queries.read_current(context.database, shown["id"], caller.id)
    if row is None:
        return answer
    durations = deadlines.in_force(row, specs.read_spec(context.database, row.spec_id))
    found = show_sandbox(row, durations, context.vault, origin=caller.origin)
    return found.model_copy(update={"paused_sandbox_ids": shown["paused_sandbox_ids"]})


def _resume(context: Context, caller: Caller, queue: JobQueue, sandbox_id: str) -> Accepted[Resumed]:
    if not context.settings.quotas:
        wished = set_desired_and_commit(context.database, sandbox_id, caller.id, Desired.RUNNING, due_at=queue.due_at)
        return Accepted(
            Resumed(paused_sandbox_ids=[]),
            (ResumeSandbox(wished.id, wished.node_id),),
            _subject(wished, Desired.RUNNING),
        )
    with context.database.transaction() as session:
        sandbox, paused, _ = sandbox_access.resume(
            session, sandbox_id, caller.id, context.settings.quotas, due_at=queue.due_at
        )
    answer = Resumed(paused_sandbox_ids=[row.id for row in paused])
    return Accepted(
        answer, (*_pauses(paused), ResumeSandbox(sandbox.id, sandbox.node_id)), _subject(sandbox, Desired.RUNNING)
    )


def _search(context: Context, caller: Caller, page_id: str | None, limit: int, status: str | None) -> Response:
    page = sandbox_lists.search(context.database, caller.id, page_id, limit, status)
    return write_page(page, write_sandbox, context.vault, caller.origin)


def _wish(
    context: Context, caller: Caller, queue: JobQueue, sandbox_id: str, desired: Desired, job: type[Job]
) -> Accepted[Success]:
    sandbox = set_desired_and_commit(context.database, sandbox_id, caller.id, desired, due_at=queue.due_at)
    return Accepted(Success(), (job(sandbox.id, sandbox.node_id),), _subject(sandbox, desired))


def _subject(sandbox: Sandbox | DesiredSandbox, desired: Desired) -> AwaitedRow:
    return AwaitedRow(Sandbox, sandbox.id, sandbox.generation, desired)


def _show(session: Session, context: Context, caller: Caller, rows: list[Sandbox]) -> list[SandboxInfo]:
    durations = deadlines.in_force_for(session, rows)
    return [show_sandbox(row, durations[row.id], context.vault, origin=caller.origin) for row in rows]


def _pauses(paused: list[Sandbox]) -> list[Job]:
    return [PauseSandbox(row.id, row.node_id) for row in paused]

"""Sandboxes: start, list, pause, resume, delete. Each command writes a wish and answers."""

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi.exceptions import RequestValidationError
from sqlmodel import Session

from api.auth import Caller, ForUsers, Me
from api.context import Context, Here, Hurry, Wishes
from api.errors import validation_entry
from api.idempotency import Once, OnlyOnce
from api.lists import Listing, ListRoute
from api.lookout import Subject
from api.patience import Patient, Wished
from api.query import Ids, Limit, PageId, RowId
from api.refusals import refusals
from api.schemas.deadlines import OwnDeadlines
from api.schemas.pages import write_page
from api.schemas.sandboxes import Resumed, SandboxInfo, TransitionInfo, show_sandbox, show_transition, write_sandbox
from api.schemas.wire import PageOf, Success
from api.stopping import interrupt_runs
from shared.clock import now
from shared.ids import parse_ids
from shared.jobs import DeleteSandbox, Job, PauseSandbox, ResumeSandbox, StartSandbox, StopSandbox
from shared.models import Sandbox
from shared.states import Desired
from shared.store import claims, deadlines, quotas, sandbox_lists, sandboxes, specs, traffic, warm_pool
from shared.store.wishes import Wished as WishedSandbox
from shared.store.wishes import wish_at_once

router = APIRouter(prefix="/sandboxes", tags=["sandboxes"], route_class=ForUsers)
lists = APIRouter(prefix=router.prefix, tags=router.tags, route_class=ListRoute)

MOST_IDS = 100
OfStatus = Annotated[Literal["STARTING", "RUNNING", "PAUSED", "ERROR"] | None, Query(alias="status__eq")]
TOO_OLD = "the sandbox is older than that: delete it, if that is what you want"


@lists.get("/search", response_model=PageOf[SandboxInfo])
async def search_sandboxes(page_id: PageId = None, limit: Limit = 100, status: OfStatus = None) -> Listing:
    """A page of the caller's sandboxes, newest first; the filter is ours."""
    return Listing(lambda here, me: _search(here, me, page_id, limit, status))


@router.get("")
def get_sandboxes(here: Here, me: Me, ids: Annotated[Ids, Query(alias="id")]) -> list[SandboxInfo | None]:
    """The caller's sandboxes of those ids, in order; null for one that is unknown or deleted."""
    hexes = parse_ids(ids, most=MOST_IDS)
    with here.database.reading() as session:
        found = sandboxes.get_many(session, hexes, me.id)
        shown = {info.id: info for info in _show(session, here, me, [row for row in found if row])}
    return [shown[row.id] if row else None for row in found]


@router.get("/{sandbox_id}")
def get_sandbox(here: Here, me: Me, sandbox_id: RowId) -> SandboxInfo:
    """One of the caller's sandboxes (ours)."""
    with here.database.reading() as session:
        [shown] = _show(session, here, me, [sandboxes.get(session, sandbox_id, me.id)])
    return shown


@router.get("/{sandbox_id}/transitions")
def list_transitions(here: Here, me: Me, sandbox_id: RowId) -> list[TransitionInfo]:
    """Every move of the sandbox's status, oldest first; of a deleted one too (ours)."""
    with here.database.reading() as session:
        sandbox = sandboxes.get(session, sandbox_id, me.id, deleted=True)
        return [show_transition(move) for move in sandboxes.transitions(session, sandbox.id)]


@router.post("", response_model=SandboxInfo, responses=refusals(404, 429))
async def start_sandbox(
    here: Here,
    me: Me,
    wishes: Hurry,
    once: OnlyOnce,
    patience: Patient,
    sandbox_spec_id: str | None = None,
    own: OwnDeadlines | None = None,
) -> Any:
    """Wish for a sandbox. The body is ours, and optional.

    It is STARTING in an answer that is not waited for, and so its key is not in it.
    """
    return await patience.see(partial(_start, here, me, wishes, once, sandbox_spec_id, own))


@router.patch("/{sandbox_id}")
def change_deadlines(here: Here, me: Me, sandbox_id: RowId, own: OwnDeadlines) -> SandboxInfo:
    """Change the sandbox's own deadlines; it counts as a use, even with nothing in the body (ours)."""
    with here.database.transaction() as session:
        sandbox = sandboxes.get(session, sandbox_id, me.id, lock=True)
        sandboxes.set_deadlines(session, sandbox, own.columns)
        if sandbox.expires_at is not None and sandbox.expires_at <= now() and "max_age_seconds" in own.columns:
            raise RequestValidationError([validation_entry(("body", "max_age_seconds"), TOO_OLD)])
        [shown] = _show(session, here, me, [sandbox])
    return shown


@router.post("/{sandbox_id}/pause")
async def pause_sandbox(
    here: Here,
    me: Me,
    wishes: Hurry,
    patience: Patient,
    sandbox_id: RowId,
    kind: Literal["frozen", "stopped"] = "frozen",
) -> Success:
    """Wish for the sandbox to be paused; pausing a paused one changes nothing.

    With `kind=stopped` (ours) its memory is freed too, frozen or not; a resume boots it on its files. For a page, to
    pause is to stop: what its agents do is interrupted, and only a sandbox in which nothing runs is paused.
    """
    if me.origin and kind == "frozen" and await interrupt_runs(here, me, sandbox_id):
        return Success()
    if kind == "stopped":
        return await patience.see(partial(_wish, here, me, wishes, sandbox_id, Desired.STOPPED, StopSandbox))
    return await patience.see(partial(_wish, here, me, wishes, sandbox_id, Desired.PAUSED, PauseSandbox))


@router.post("/{sandbox_id}/resume", responses=refusals(429))
async def resume_sandbox(here: Here, me: Me, wishes: Hurry, patience: Patient, sandbox_id: RowId) -> Resumed:
    """Wish for the sandbox to run; resuming a running one changes nothing, one in ERROR is started again."""
    return await patience.see(partial(_resume, here, me, wishes, sandbox_id))


@router.delete("/{sandbox_id}")
async def delete_sandbox(here: Here, me: Me, wishes: Hurry, patience: Patient, sandbox_id: RowId) -> Success:
    """Wish for the sandbox to be gone, from any state. V1's clients name it in the query too: that is ignored."""
    return await patience.see(partial(_wish, here, me, wishes, sandbox_id, Desired.DELETED, DeleteSandbox))


def _start(
    here: Context, me: Caller, wishes: Wishes, once: Once, spec_id: str | None, own: OwnDeadlines | None
) -> Wished[Any]:
    limits, columns = here.settings.quotas, own.columns if own else {}
    if not (limits or once.has_key) and (claimed := _claim(here, me, wishes, spec_id, columns)) is not None:
        return claimed
    with here.database.transaction(needs_place=True) as session:
        if (kept := once.find(session)) is not None:
            made = session.get(Sandbox, kept.document["id"])
            return _started(here, me, made.generation if made else 0, kept.document, kept.answer)
        spec = specs.choose_spec(session, me.id, spec_id)
        quotas.lock(session, me.id, limits)
        paused = quotas.admit_create(session, me.id, limits, spec=spec, due_at=wishes.due_at)
        sandbox = warm_pool.obtain(
            session, here.vault, owner_id=me.id, spec=spec, due_at=wishes.due_at, own_deadlines=columns
        )
        answer = show_sandbox(sandbox, deadlines.in_force(sandbox, spec), here.vault, paused)
        once.keep(session, answer)
    jobs = (*_pauses(paused), StartSandbox(sandbox.id, sandbox.node_id))
    return _started(here, me, sandbox.generation, answer.model_dump(), answer, *jobs)


def _claim(
    here: Context, me: Caller, wishes: Wishes, spec_id: str | None, columns: dict[str, int | None]
) -> Wished[Any] | None:
    """The quick way, for who finds a member of the pool and is held against nothing else."""
    found = claims.claim_at_once(
        here.database, here.vault, owner_id=me.id, spec_id=spec_id, due_at=wishes.due_at, own=columns
    )
    if found is None:
        return None
    sandbox, spec = found
    answer = show_sandbox(sandbox, deadlines.in_force(sandbox, spec), here.vault, [])
    job = StartSandbox(sandbox.id, sandbox.node_id)
    return _started(here, me, sandbox.generation, answer.model_dump(), answer, job)


def _started(here: Context, me: Caller, generation: int, shown: dict[str, Any], answer: Any, *jobs: Job) -> Wished[Any]:
    subject = Subject(Sandbox, shown["id"], generation, Desired.RUNNING)
    return Wished(answer, jobs, subject, partial(_look, here, me, shown, answer))


def _look(here: Context, me: Caller, shown: dict[str, Any], answer: Any) -> Any:
    """The sandbox as it is by now; if somebody has deleted it meanwhile, as it was."""
    row = sandboxes.look(here.database, shown["id"], me.id)
    if row is None:
        return answer
    durations = deadlines.in_force(row, specs.read_spec(here.database, row.spec_id))
    found = show_sandbox(row, durations, here.vault, origin=me.origin)
    return found.model_copy(update={"paused_sandbox_ids": shown["paused_sandbox_ids"]})


def _resume(here: Context, me: Caller, wishes: Wishes, sandbox_id: str) -> Wished[Resumed]:
    if not here.settings.quotas:
        wished = wish_at_once(here.database, sandbox_id, me.id, Desired.RUNNING, due_at=wishes.due_at)
        return Wished(
            Resumed(paused_sandbox_ids=[]),
            (ResumeSandbox(wished.id, wished.node_id),),
            _subject(wished, Desired.RUNNING),
        )
    with here.database.transaction() as session:
        sandbox, paused, _ = traffic.resume(session, sandbox_id, me.id, here.settings.quotas, due_at=wishes.due_at)
    answer = Resumed(paused_sandbox_ids=[row.id for row in paused])
    return Wished(
        answer, (*_pauses(paused), ResumeSandbox(sandbox.id, sandbox.node_id)), _subject(sandbox, Desired.RUNNING)
    )


def _search(here: Context, me: Caller, page_id: str | None, limit: int, status: str | None) -> Response:
    page = sandbox_lists.search(here.database, me.id, page_id, limit, status)
    return write_page(page, write_sandbox, here.vault, me.origin)


def _wish(
    here: Context, me: Caller, wishes: Wishes, sandbox_id: str, desired: Desired, job: type[Job]
) -> Wished[Success]:
    sandbox = wish_at_once(here.database, sandbox_id, me.id, desired, due_at=wishes.due_at)
    return Wished(Success(), (job(sandbox.id, sandbox.node_id),), _subject(sandbox, desired))


def _subject(sandbox: Sandbox | WishedSandbox, desired: Desired) -> Subject:
    return Subject(Sandbox, sandbox.id, sandbox.generation, desired)


def _show(session: Session, here: Context, me: Caller, rows: list[Sandbox]) -> list[SandboxInfo]:
    durations = deadlines.in_force_for(session, rows)
    return [show_sandbox(row, durations[row.id], here.vault, origin=me.origin) for row in rows]


def _pauses(paused: list[Sandbox]) -> list[Job]:
    return [PauseSandbox(row.id, row.node_id) for row in paused]

"""Sandboxes: start, list, pause, resume, delete. Each command writes a wish and answers."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from api.auth import ForUsers, Me
from api.context import Here, Hurry
from api.idempotency import OnlyOnce
from api.query import Ids, Limit, PageId
from api.schemas.sandboxes import Resumed, SandboxInfo, TransitionInfo, show_sandbox, show_transition
from api.schemas.wire import PageOf, Success
from shared.ids import check_count
from shared.jobs import DeleteSandbox, Job, PauseSandbox, ResumeSandbox, StartSandbox
from shared.models import Sandbox
from shared.states import Desired
from shared.store import quotas, sandboxes, specs

router = APIRouter(prefix="/sandboxes", tags=["sandboxes"], route_class=ForUsers)

MOST_IDS = 100


@router.get("/search")
def search_sandboxes(here: Here, me: Me, page_id: PageId = None, limit: Limit = 100) -> PageOf[SandboxInfo]:
    """A page of the caller's sandboxes, newest first."""
    with here.database.reading() as session:
        page = sandboxes.search(session, me.id, page_id, limit)
    return PageOf(items=[show_sandbox(row, here.vault) for row in page.items], next_page_id=page.next_page_id)


@router.get("")
def get_sandboxes(here: Here, me: Me, ids: Annotated[Ids, Query(alias="id")]) -> list[SandboxInfo | None]:
    """The caller's sandboxes of those ids, in order; null for one that is unknown or deleted."""
    check_count(ids, most=MOST_IDS)
    with here.database.reading() as session:
        found = sandboxes.get_many(session, ids, me.id)
    return [show_sandbox(row, here.vault) if row else None for row in found]


@router.get("/{sandbox_id}")
def get_sandbox(here: Here, me: Me, sandbox_id: str) -> SandboxInfo:
    """One of the caller's sandboxes (ours)."""
    with here.database.reading() as session:
        return show_sandbox(sandboxes.get(session, sandbox_id, me.id), here.vault)


@router.get("/{sandbox_id}/transitions")
def list_transitions(here: Here, me: Me, sandbox_id: str) -> list[TransitionInfo]:
    """Every move of the sandbox's status, oldest first (ours)."""
    with here.database.reading() as session:
        sandbox = sandboxes.get(session, sandbox_id, me.id)
        return [show_transition(move) for move in sandboxes.transitions(session, sandbox.id)]


@router.post("", response_model=SandboxInfo)
def start_sandbox(here: Here, me: Me, wishes: Hurry, once: OnlyOnce, sandbox_spec_id: str | None = None) -> Any:
    """Wish for a sandbox; it is STARTING in the answer, and so its key is not in it."""
    limits = here.settings.quotas
    with here.database.transaction() as session:
        if (answered := once.find(session)) is not None:
            return answered
        spec = specs.get_spec(session, sandbox_spec_id)
        quotas.lock(session, me.id, limits)
        paused = quotas.admit_create(session, me.id, limits, due_at=wishes.due_at)
        sandbox = sandboxes.create(session, here.vault, owner_id=me.id, spec=spec, due_at=wishes.due_at)
        answer = show_sandbox(sandbox, here.vault, paused)
        once.keep(session, answer)
    wishes.hurry(*_pauses(paused), StartSandbox(sandbox.id, sandbox.node_id))
    return answer


@router.post("/{sandbox_id}/pause")
def pause_sandbox(here: Here, me: Me, wishes: Hurry, sandbox_id: str) -> Success:
    """Wish for the sandbox to be paused; pausing a paused one changes nothing."""
    return _wish(here, me, wishes, sandbox_id, Desired.PAUSED, PauseSandbox)


@router.post("/{sandbox_id}/resume")
def resume_sandbox(here: Here, me: Me, wishes: Hurry, sandbox_id: str) -> Resumed:
    """Wish for the sandbox to run; resuming a running one changes nothing, one in ERROR is started again."""
    limits = here.settings.quotas
    with here.database.transaction() as session:
        quotas.lock(session, me.id, limits)
        sandbox = sandboxes.get(session, sandbox_id, me.id, lock=True)
        paused = quotas.admit_resume(session, sandbox, limits, due_at=wishes.due_at)
        sandboxes.wish(session, sandbox, Desired.RUNNING, due_at=wishes.due_at)
    wishes.hurry(*_pauses(paused), ResumeSandbox(sandbox.id, sandbox.node_id))
    return Resumed(paused_sandbox_ids=[row.id for row in paused])


@router.delete("/{sandbox_id}")
def delete_sandbox(here: Here, me: Me, wishes: Hurry, sandbox_id: str) -> Success:
    """Wish for the sandbox to be gone, from any state. V1's clients name it in the query too: that is ignored."""
    return _wish(here, me, wishes, sandbox_id, Desired.DELETED, DeleteSandbox)


def _wish(here: Here, me: Me, wishes: Hurry, sandbox_id: str, desired: Desired, job: type[Job]) -> Success:
    with here.database.transaction() as session:
        sandbox = sandboxes.get(session, sandbox_id, me.id, lock=True)
        sandboxes.wish(session, sandbox, desired, due_at=wishes.due_at)
    wishes.hurry(job(sandbox.id, sandbox.node_id))
    return Success()


def _pauses(paused: list[Sandbox]) -> list[Job]:
    return [PauseSandbox(row.id, row.node_id) for row in paused]

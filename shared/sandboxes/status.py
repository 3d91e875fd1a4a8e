"""The observed state of sandboxes: every write of `status` by a worker is made in this module (law 6)."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import insert
from sqlmodel import Session, col, select

from shared.changes import recorder as change_recorder
from shared.clock import now
from shared.errors import IllegalMove
from shared.leasing import leases
from shared.models import Sandbox, SandboxTransition
from shared.sandboxes import deadlines
from shared.sql.prepared import bind, bind_list, bind_values, send
from shared.states import MOVES, PauseKind, Reason, Status


@dataclass(frozen=True)
class ObservedState:
    """The state of a sandbox as a worker observed it."""

    status: Status
    reason: Reason | None = None
    detail: str | None = None
    pause_kind: PauseKind | None = None
    exposed_urls: list[dict[str, Any]] | None = None


def set_status(
    session: Session,
    sandbox: Sandbox,
    state: ObservedState,
    *,
    observed_generation: int | None = None,
    releases_lease: bool = False,
) -> bool:
    """Write an observed state under the caller's lease: the only function that writes `status` (law 6).

    Args:
        sandbox: the row as claimed, detached from its session. Its `fence` is checked, and its columns are updated.
        state: the observed state.
        observed_generation: the generation that is reconciled with it; None while its actions are not complete.
        releases_lease: release the lease too, if the generation is still the one in `sandbox`. `due_at` of `sandbox` is
            updated then: it says whether the row must be reconciled further.

    Returns:
        Whether the status changed, or the kind of pause.

    Raises:
        LeaseLost: another worker owns the row, or has set a newer generation (`releases_lease`); nothing was written.
        IllegalMove: `MOVES` does not have this move; nothing was written.
    """
    before = Status(sandbox.status)
    if state.status != before and state.status not in MOVES[before]:
        raise IllegalMove(f"sandbox {sandbox.id}: {before} → {state.status}")
    moved = (state.status, state.pause_kind) != (before, sandbox.pause_kind)
    columns = _columns(sandbox, state, observed_generation)
    if moved:
        columns["settled_at"] = now()
    if releases_lease:
        columns |= leases.RELEASED
    still = {"generation": sandbox.generation} if releases_lease else None
    names = deadlines.Written._fields
    written = leases.write(session, Sandbox, sandbox.id, sandbox.fence, still=still, returning=names, **columns)
    for name, value in columns.items():
        setattr(sandbox, name, value)
    row = deadlines.Written(*written)
    deadlines.recompute(session, row)
    sandbox.due_at = row.due_at if releases_lease else sandbox.due_at
    change_recorder.record_change(session, row)
    if moved:
        send(session, INSERT_TRANSITION, _transition(sandbox.id, before, state))
    return moved


def _columns(sandbox: Sandbox, state: ObservedState, observed_generation: int | None) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "status": state.status,
        "reason": state.reason,
        "detail": state.detail,
        "pause_kind": state.pause_kind,
        "exposed_urls": state.exposed_urls,
        "updated_at": now(),
    }
    if observed_generation is not None:
        columns |= {"observed_generation": observed_generation, "attempt": 0}
    if state.status == Status.RUNNING and sandbox.ready_at is None:
        columns["ready_at"] = now()
    return columns


def _transition(sandbox_id: str, before: Status, state: ObservedState) -> dict[str, Any]:
    return bind_values(
        sandbox_id=sandbox_id,
        from_status=before,
        to_status=state.status,
        pause_kind=state.pause_kind,
        reason=state.reason,
        at=now(),
    )


INSERT_TRANSITION = insert(SandboxTransition).values(
    {name: bind(name) for name in ("sandbox_id", "from_status", "to_status", "pause_kind", "reason", "at")}
)


@cache
def is_observed(number: int) -> Any:
    """Build a prepared SELECT of the observed generations of `number` sandboxes."""
    columns = (Sandbox.id, Sandbox.observed_generation, Sandbox.desired)
    return select(*columns).where(col(Sandbox.id).in_(bind_list("id", number)))

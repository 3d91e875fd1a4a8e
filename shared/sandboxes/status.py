"""The observed state of sandboxes: every value of `status` and every transition is written here (law 6)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import CTE, Insert, delete, insert, literal
from sqlalchemy import select as sql_select
from sqlmodel import Session, col, select

from shared.changes import recorder as change_recorder
from shared.changes.change_entry import table_of
from shared.clock import now
from shared.errors import IllegalTransition
from shared.leasing import leases
from shared.models import Sandbox, SandboxTransition
from shared.sandboxes import deadlines
from shared.sql.statements import bind, bind_list, bind_values, get_locked, send
from shared.states import PAUSING, TRANSITIONS, Desired, PauseKind, Reason, Status

# The name of the agent server's port among the exposed ones.
AGENT_SERVER = "AGENT_SERVER"
# The history of a sandbox: its newest transitions. It is cut at about one of `CUT_EVERY` transitions, chosen by their
# ids, which all sandboxes share; a prime, so that two sandboxes that alternate cannot evade it.
MAX_TRANSITIONS, CUT_EVERY = 1000, 97
MAX_DELETED = 1000


@dataclass(frozen=True)
class ObservedState:
    """The state of a sandbox as a worker observed it."""

    status: Status
    reason: Reason | None = None
    detail: str | None = None
    pause_kind: PauseKind | None = None
    exposed_urls: list[dict[str, Any]] | None = None
    # The seconds of each phase that led to this state, for the sandbox's history.
    phases: dict[str, float] | None = field(default=None, compare=False)
    # When its container was last started; None: that is unknown, or it does not run.
    started_at: datetime | None = field(default=None, compare=False)


def read_state(sandbox: Sandbox) -> ObservedState:
    """Return the observed state that a row has. The phases that led to it are in its history."""
    return ObservedState(
        status=Status(sandbox.status),
        reason=Reason(sandbox.reason) if sandbox.reason else None,
        detail=sandbox.detail,
        pause_kind=PauseKind(sandbox.pause_kind) if sandbox.pause_kind else None,
        exposed_urls=sandbox.exposed_urls,
    )


def was_restarted(sandbox: Sandbox, started_at: datetime | None) -> bool:
    """Whether the container was started after the sandbox's status was written: it may have ended without a check."""
    return started_at is not None and started_at > sandbox.status_changed_at


def agent_server(exposed_urls: Sequence[Mapping[str, Any]] | None) -> str | None:
    """Return the URL of a sandbox's agent server without a trailing slash, or None if it is not exposed."""
    urls = (str(url["url"]).rstrip("/") for url in exposed_urls or () if url["name"] == AGENT_SERVER)
    return next(urls, None)


def set_status(
    session: Session,
    sandbox: Sandbox,
    state: ObservedState,
    *,
    observed_generation: int | None = None,
    releases_lease: bool = False,
) -> bool:
    """Write an observed state under the caller's lease (law 6).

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
        IllegalTransition: `TRANSITIONS` does not have this one; nothing was written.
    """
    before = Status(sandbox.status)
    if state.status != before and state.status not in TRANSITIONS[before]:
        raise IllegalTransition(f"sandbox {sandbox.id}: {before} → {state.status}")
    moved = (state.status, state.pause_kind) != (before, sandbox.pause_kind)
    columns = _columns(sandbox, state, observed_generation)
    if moved or was_restarted(sandbox, state.started_at):
        columns["status_changed_at"] = now()
    if releases_lease:
        columns |= leases.RELEASED
    still = {"generation": sandbox.generation} if releases_lease else None
    names = deadlines.UpdatedSandbox._fields
    written = leases.write(session, Sandbox, sandbox.id, sandbox.fence, still=still, returning=names, **columns)
    for name, value in columns.items():
        setattr(sandbox, name, value)
    row = deadlines.UpdatedSandbox(*written)
    deadlines.recompute(session, row)
    sandbox.due_at = row.due_at if releases_lease else sandbox.due_at
    change_recorder.record_change(session, row)
    if moved:
        [[transition_id]] = send(session, INSERT_TRANSITION, _transition(sandbox.id, before, state))
        if transition_id % CUT_EVERY == 0:
            _cut_history(session, sandbox.id)
    return moved


def add_sandbox(session: Session, **columns: Any) -> Sandbox:
    """Add the row of a new sandbox, STARTING, with the first entry of its history."""
    sandbox = Sandbox(status=Status.STARTING, **columns)
    session.add(sandbox)
    session.flush()
    session.add(SandboxTransition(sandbox_id=sandbox.id, to_status=Status.STARTING))
    return sandbox


def restart_failed(session: Session, sandbox_id: str) -> None:
    """Write STARTING for a sandbox in ERROR that was just resumed, or retried by an operator (decision 85).

    Clients that poll a resumed sandbox give up at ERROR (wire contract 2.1), and a worker writes STARTING only later.
    The sandbox of a lost node stays in ERROR until it fails over, or its node is back.
    """
    row = get_locked(session, Sandbox, sandbox_id)
    if row is None or not _is_failed_and_resumed(row):
        return
    at = now()
    row.status, row.reason, row.detail, row.status_changed_at, row.updated_at = Status.STARTING, None, None, at, at
    session.flush()
    change_recorder.record_change(session, row)
    send(session, INSERT_TRANSITION, _transition(sandbox_id, Status.ERROR, ObservedState(Status.STARTING)))


def pause_unplaced(session: Session, sandbox_id: str, owner: str, seconds: float) -> bool:
    """Write PAUSED for a sandbox without a node that is to be paused or stopped: it has no container.

    Args:
        owner: of the lease that the write needs.
        seconds: the length of that lease.

    Returns:
        Whether it was written: not if the sandbox was placed, or its desired state has changed.
    """
    found = get_locked(session, Sandbox, sandbox_id, skip_locked=True)
    if found is None or found.node_id is not None or found.desired not in PAUSING:
        return False
    leases.mark_due(session, Sandbox, sandbox_id, now())
    sandbox = leases.claim(session, Sandbox, sandbox_id, owner, seconds)
    if sandbox is None:
        return False
    why = Reason(sandbox.desired_reason) if sandbox.desired_reason else None
    paused = ObservedState(Status.PAUSED, why, pause_kind=PauseKind.STOPPED)
    set_status(session, sandbox, paused, observed_generation=sandbox.generation, releases_lease=True)
    return True


def delete_history(session: Session, sandbox_ids: Collection[str]) -> None:
    """Delete the history of sandboxes whose rows the caller deletes."""
    own = delete(SandboxTransition).where(col(SandboxTransition.sandbox_id).in_(sandbox_ids))
    session.execute(own.execution_options(synchronize_session=False))


def claimed_columns(at: Any) -> dict[str, Any]:
    """Return the columns that make a ready warm sandbox one that is STARTING, for the statement that claims it.

    No worker has its lease, so that statement replaces `set_status` (decision 21).
    """
    return {"status": Status.STARTING, "exposed_urls": None, "ready_at": None, "status_changed_at": at}


def record_claim(session: Session, sandbox_id: str) -> None:
    """Add the claim of a warm sandbox to its history."""
    send(session, INSERT_TRANSITION, _transition(sandbox_id, Status.RUNNING, CLAIMED))


def insert_claim(claimed: CTE) -> Insert:
    """Build the statement that does for the row of a CTE what `record_claim` does."""
    values = {
        TRANSITION.c.sandbox_id: claimed.c.id,
        TRANSITION.c.from_status: literal(Status.RUNNING.value),
        TRANSITION.c.to_status: claimed.c.status,
        TRANSITION.c.reason: literal(Reason.CLAIMED.value),
        TRANSITION.c.at: claimed.c.created_at,
    }
    return insert(TRANSITION).from_select(list(values), sql_select(*values.values()))


def _is_failed_and_resumed(row: Sandbox) -> bool:
    """Whether STARTING is the next state; a worker with a lease, which knows the row as it was, writes it itself."""
    is_resumed = row.desired == Desired.RUNNING and row.generation != row.observed_generation
    is_failed = row.status == Status.ERROR and row.reason != Reason.NODE_LOST
    return is_resumed and is_failed and row.lease_until is None


def _cut_history(session: Session, sandbox_id: str) -> None:
    """Delete transitions beyond the newest `MAX_TRANSITIONS`. The caller has written the sandbox's row."""
    own = select(SandboxTransition.id).where(SandboxTransition.sandbox_id == sandbox_id)
    newest_first = own.order_by(col(SandboxTransition.id).desc()).offset(MAX_TRANSITIONS).limit(MAX_DELETED)
    if old := session.exec(newest_first).all():
        session.execute(delete(SandboxTransition).where(col(SandboxTransition.id).in_(old)))


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
        phases=state.phases,
        at=now(),
    )


TRANSITION = table_of(SandboxTransition)
CLAIMED = ObservedState(Status.STARTING, Reason.CLAIMED)
WRITTEN = ("sandbox_id", "from_status", "to_status", "pause_kind", "reason", "phases", "at")
INSERT_TRANSITION = insert(TRANSITION).values({name: bind(name) for name in WRITTEN}).returning(TRANSITION.c.id)


@cache
def is_observed(number: int) -> Any:
    """Build a prepared SELECT of the observed generations of `number` sandboxes."""
    columns = (Sandbox.id, Sandbox.observed_generation, Sandbox.desired)
    return select(*columns).where(col(Sandbox.id).in_(bind_list("id", number)))

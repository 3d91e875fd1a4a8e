"""A circuit breaker per node and spec: a node that fails to run a spec gets no sandboxes of it for a while.

`shared.nodes.placement` reads the breakers; sandboxes that become ready open and close them.

A failure counts against the node only when the sandbox became ready on another node. So a broken spec opens no breaker,
and one owner's sandboxes can't take a node from the specs of others.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, CursorResult, delete, or_
from sqlalchemy import select as sql_select
from sqlmodel import Session, col, select

from shared.clock import now
from shared.models import Node, NodeSpecBackoff, Sandbox, StaleContainer
from shared.nodes.placement import is_breaker
from shared.sql.statements import bind, bind_values, send

# The failures in a row that open the breaker. Each time the backoff doubles.
MAX_FAILURES = 3
FIRST_BACKOFF = timedelta(seconds=30)
MAX_BACKOFF = timedelta(minutes=15)


@dataclass(frozen=True)
class BackoffChange:
    """A change of a breaker after a sandbox became ready: `failures` is 0 if the node runs the spec."""

    node_id: str
    failures: int
    rests_until: datetime | None = None


def record_result(session: Session, sandbox: Sandbox) -> list[BackoffChange]:
    """Record a sandbox that became ready: a success of its node, and a failure of the nodes that failed to run it."""
    ids = {"sandbox_id": sandbox.id, "node_id": sandbox.node_id, "spec_id": sandbox.spec_id}
    [[has_result]] = send(session, HAS_RESULT, bind_values(generation=sandbox.generation, **ids))
    return _update_breakers(session, sandbox) if has_result else []


def reset_backoff(session: Session, node_id: str) -> None:
    """Reset the breakers of a node."""
    _record_success(session, col(NodeSpecBackoff.node_id) == node_id)


def open_breakers(session: Session) -> list[NodeSpecBackoff]:
    """Return every open breaker."""
    return list(session.exec(select(NodeSpecBackoff).where(col(NodeSpecBackoff.rests_until) > now())).all())


def _update_breakers(session: Session, sandbox: Sandbox) -> list[BackoffChange]:
    is_failed = (
        StaleContainer.sandbox_id == sandbox.id,
        StaleContainer.refused_generation == sandbox.generation,
    )
    failed = session.exec(select(StaleContainer).where(*is_failed).order_by(col(StaleContainer.node_id))).all()
    changes = []
    for container in failed:
        container.refused_generation = None
        changes.append(_record_failure(session, container.node_id, sandbox.spec_id, container.refusal))
    if _record_success(session, is_breaker(str(sandbox.node_id), sandbox.spec_id)):
        changes.append(BackoffChange(str(sandbox.node_id), failures=0))
    return changes


def _record_failure(session: Session, node_id: str, spec_id: str, detail: str | None) -> BackoffChange:
    session.get(Node, node_id, with_for_update={"key_share": True})  # one at a time
    row = session.get(NodeSpecBackoff, (node_id, spec_id), populate_existing=True)
    if row is None:
        row = NodeSpecBackoff(node_id=node_id, spec_id=spec_id)
        session.add(row)
    # A failure of a sandbox placed before the breaker opened does not count.
    if row.rests_until is None or row.on_trial or row.rests_until < now():
        row.failures, row.detail, row.on_trial = row.failures + 1, detail, False
        row.rests_until = now() + _backoff(row.failures) if row.failures >= MAX_FAILURES else None
    return BackoffChange(node_id, row.failures, row.rests_until)


def _record_success(session: Session, where: ColumnElement[bool]) -> bool:
    result: CursorResult[object] = session.execute(delete(NodeSpecBackoff).where(where))  # type: ignore[assignment]
    return result.rowcount > 0


def _backoff(failures: int) -> timedelta:
    doublings = min(failures - MAX_FAILURES, 10)
    return min(FIRST_BACKOFF * float(2**doublings), MAX_BACKOFF)


# --- prepared statement ---------------------------------------------------------------------------------------------

FAILED_ELSEWHERE = select(StaleContainer.node_id).where(
    StaleContainer.sandbox_id == bind("sandbox_id"), StaleContainer.refused_generation == bind("generation")
)
HAS_FAILURES = select(NodeSpecBackoff.node_id).where(is_breaker(bind("node_id"), bind("spec_id")))
# Whether a breaker must change. It is asked for every sandbox that becomes ready, and rarely true.
HAS_RESULT = sql_select(or_(FAILED_ELSEWHERE.exists(), HAS_FAILURES.exists()))

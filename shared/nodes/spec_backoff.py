"""Engines that refuse sandboxes of a spec that other engines run: their nodes get no more of it for a while.

Whether a refusal is the node's fault or the spec's shows when another node has tried: only what became ready there
counts. So a spec that is broken costs no node anything, and nobody's sandboxes take a node away from others' specs.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, CursorResult, and_, delete, or_, update
from sqlalchemy import select as sql_select
from sqlmodel import Session, col, select

from shared.clock import now
from shared.models import Node, NodeSpecBackoff, Sandbox, StaleContainer
from shared.sql.prepared import give, given, send

# So many refusals in a row, and a node rests: each time longer.
MAX_FAILURES = 3
FIRST_REST = timedelta(seconds=30)
MAX_REST = timedelta(minutes=15)
# A trial that has shown nothing for so long is followed by another.
MAX_TRIAL = timedelta(minutes=2)


@dataclass(frozen=True)
class BackoffChange:
    """What a node is known for after a sandbox became ready: `failures` 0 if it runs the spec again."""

    node_id: str
    failures: int
    rests_until: datetime | None = None


def is_resting(spec_id: str) -> ColumnElement[bool]:
    """Whether a node gets no sandboxes of that spec now; for a query over nodes."""
    row = select(NodeSpecBackoff.node_id).where(
        NodeSpecBackoff.node_id == Node.id, NodeSpecBackoff.spec_id == spec_id, col(NodeSpecBackoff.rests_until) > now()
    )
    return row.exists()


def begin_half_open(session: Session, node_id: str, spec_id: str) -> None:
    """Let one sandbox show whether a node that has rested is in order again; the next ones go elsewhere meanwhile.

    The caller holds the node's lock. A node that need not rest is left alone.
    """
    rested = _is(node_id, spec_id), col(NodeSpecBackoff.rests_until).is_not(None)
    session.execute(update(NodeSpecBackoff).where(*rested).values(on_trial=True, rests_until=now() + MAX_TRIAL))


def record_result(session: Session, sandbox: Sandbox) -> list[BackoffChange]:
    """Draw the conclusions from a sandbox that is ready: its node runs the spec, and whoever refused it does not."""
    ids = {"sandbox_id": sandbox.id, "node_id": sandbox.node_id, "spec_id": sandbox.spec_id}
    [[is_evidence]] = send(session, EVIDENCE, give(generation=sandbox.generation, **ids))
    return _judge(session, sandbox) if is_evidence else []


def reset_backoff(session: Session, node_id: str) -> None:
    """Forget what a node's engine has refused."""
    _record_success(session, col(NodeSpecBackoff.node_id) == node_id)


def resting(session: Session) -> list[NodeSpecBackoff]:
    """Every node and spec that don't go together now."""
    return list(session.exec(select(NodeSpecBackoff).where(col(NodeSpecBackoff.rests_until) > now())).all())


def _judge(session: Session, sandbox: Sandbox) -> list[BackoffChange]:
    refused = (
        StaleContainer.sandbox_id == sandbox.id,
        StaleContainer.refused_generation == sandbox.generation,
    )
    proofs = session.exec(select(StaleContainer).where(*refused).order_by(col(StaleContainer.node_id))).all()
    judged = []
    for proof in proofs:
        proof.refused_generation = None
        judged.append(_record_failure(session, proof.node_id, sandbox.spec_id, proof.refusal))
    if _record_success(session, _is(str(sandbox.node_id), sandbox.spec_id)):
        judged.append(BackoffChange(str(sandbox.node_id), failures=0))
    return judged


def _record_failure(session: Session, node_id: str, spec_id: str, words: str | None) -> BackoffChange:
    session.get(Node, node_id, with_for_update={"key_share": True})  # one at a time
    row = session.get(NodeSpecBackoff, (node_id, spec_id), populate_existing=True)
    if row is None:
        row = NodeSpecBackoff(node_id=node_id, spec_id=spec_id)
        session.add(row)
    # What was placed there before it rested says nothing new.
    if row.rests_until is None or row.on_trial or row.rests_until < now():
        row.failures, row.detail, row.on_trial = row.failures + 1, words, False
        row.rests_until = now() + _rest(row.failures) if row.failures >= MAX_FAILURES else None
    return BackoffChange(node_id, row.failures, row.rests_until)


def _record_success(session: Session, where: ColumnElement[bool]) -> bool:
    result: CursorResult[object] = session.execute(delete(NodeSpecBackoff).where(where))  # type: ignore[assignment]
    return result.rowcount > 0


def _rest(failures: int) -> timedelta:
    doublings = min(failures - MAX_FAILURES, 10)
    return min(FIRST_REST * float(2**doublings), MAX_REST)


def _is(node_id: Any, spec_id: Any) -> ColumnElement[bool]:
    return and_(col(NodeSpecBackoff.node_id) == node_id, col(NodeSpecBackoff.spec_id) == spec_id)


# --- the statement, made once ---------------------------------------------------------------------------------------

REFUSED = select(StaleContainer.node_id).where(
    StaleContainer.sandbox_id == given("sandbox_id"), StaleContainer.refused_generation == given("generation")
)
BLAMED = select(NodeSpecBackoff.node_id).where(_is(given("node_id"), given("spec_id")))
# Whether there is something to conclude: hardly ever, and every sandbox that becomes ready asks.
EVIDENCE = sql_select(or_(REFUSED.exists(), BLAMED.exists()))

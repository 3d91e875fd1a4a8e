"""What the rows say, and what is shown of them, held against what may be so at rest."""

from collections.abc import Iterator, Mapping, Sequence

from shared.models import Conversation, Sandbox, SandboxTransition, StartTask
from tests.drills.evidence import Evidence

# The legal moves of a status once more: an illegal one that is added to `shared.states.MOVES` stays illegal here.
LEGAL_MOVES: Mapping[str, frozenset[str]] = {
    "STARTING": frozenset({"RUNNING", "PAUSED", "ERROR", "DELETING"}),
    "RUNNING": frozenset({"STARTING", "PAUSED", "ERROR", "DELETING"}),
    # PAUSED to PAUSED: from frozen to stopped.
    "PAUSED": frozenset({"PAUSED", "STARTING", "RUNNING", "ERROR", "DELETING"}),
    "ERROR": frozenset({"STARTING", "RUNNING", "PAUSED", "DELETING"}),
    "DELETING": frozenset({"DELETED"}),
    "DELETED": frozenset(),
}
FIRST = "STARTING"
# What users are not shown.
HIDDEN = frozenset({"DELETING", "DELETED"})


def _is_watched(row: Sandbox | StartTask | Conversation) -> bool:
    """Whether a worker looks at it from time to time, as its agent runs and its model may be silent."""
    return isinstance(row, Conversation) and row.execution_status == "running"


def unsettled(evidence: Evidence) -> Iterator[str]:
    """Rows that still wait for a worker, or are in the hands of one."""
    rows: list[Sandbox | StartTask | Conversation] = [
        *evidence.sandboxes,
        *evidence.start_tasks,
        *evidence.conversations,
    ]
    for row in rows:
        name = f"{type(row).__name__} {row.id}"
        if (row.lease_owner is not None or row.lease_until is not None) and not _is_watched(row):
            yield f"{name} is still held"
        if row.due_at is not None and not _is_watched(row):
            yield f"{name} still wants a hand"
    for row in evidence.sandboxes:
        if row.generation != row.observed_generation:
            yield f"Sandbox {row.id}: generation {row.generation} is not observed"


def misreported(evidence: Evidence) -> Iterator[str]:
    """Sandboxes that the service lists over the wire otherwise than they are."""
    if evidence.listed is None:
        return
    shown = {row.id: row.status for row in evidence.sandboxes if row.owner_id and row.status not in HIDDEN}
    for sandbox_id in sorted(shown.keys() | evidence.listed.keys()):
        expected, listed = shown.get(sandbox_id), evidence.listed.get(sandbox_id)
        if expected != listed:
            yield f"sandbox {sandbox_id} is listed as {listed}, and its row would show {expected}"


def illegal_histories(evidence: Evidence) -> Iterator[str]:
    """Moves that no sandbox may make, and histories that do not lead to the status."""
    moves: dict[str, list[SandboxTransition]] = {}
    for move in sorted(evidence.transitions, key=lambda move: move.id or 0):
        moves.setdefault(move.sandbox_id, []).append(move)
    for row in evidence.sandboxes:
        yield from _illegal_moves(row, moves.get(row.id, []))


def _illegal_moves(row: Sandbox, moves: Sequence[SandboxTransition]) -> Iterator[str]:
    at: str | None = None
    for move in moves:
        legal = move.to_status == FIRST if at is None else move.to_status in LEGAL_MOVES[at]
        if move.from_status != at or not legal:
            yield f"sandbox {row.id}: the move {move.from_status} → {move.to_status} follows {at}"
        at = move.to_status
    if at != row.status:
        yield f"sandbox {row.id}: its history ends with {at}, its row says {row.status}"

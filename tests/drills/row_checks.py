"""Checks of the rows, and of what the API shows of them, once everything has settled."""

from collections.abc import Iterator, Mapping, Sequence

from shared.clock import now
from shared.models import Conversation, Sandbox, SandboxTransition, StartTask
from tests.drills.evidence import Evidence

# A second copy of the legal transitions: an illegal one that is added to the product stays illegal here.
LEGAL_TRANSITIONS: Mapping[str, frozenset[str]] = {
    "STARTING": frozenset({"RUNNING", "PAUSED", "ERROR", "DELETING"}),
    "RUNNING": frozenset({"STARTING", "PAUSED", "ERROR", "DELETING"}),
    # PAUSED to PAUSED: from frozen to stopped.
    "PAUSED": frozenset({"PAUSED", "STARTING", "RUNNING", "ERROR", "DELETING"}),
    "ERROR": frozenset({"STARTING", "RUNNING", "PAUSED", "DELETING"}),
    "DELETING": frozenset({"DELETED"}),
    "DELETED": frozenset(),
}
FIRST = "STARTING"
# The statuses that the API does not list.
HIDDEN = frozenset({"DELETING", "DELETED"})


def _is_watched(row: Sandbox | StartTask | Conversation) -> bool:
    """Whether a worker checks the row periodically: its agent runs, and its model may stop responding."""
    return isinstance(row, Conversation) and (row.execution_status == "running" or _awaits_last_check(row))


def _awaits_last_check(row: Conversation) -> bool:
    """Whether all that is due is a later check of a run that has ended since: a report does not cancel it."""
    is_wanted = row.awaits_sandbox or row.deleted_at is not None or row.attempt > 0
    return not is_wanted and row.lease_until is None and row.due_at is not None and row.due_at > now()


def unsettled(evidence: Evidence) -> Iterator[str]:
    """Rows that are still due, leased, or behind their generation."""
    rows: list[Sandbox | StartTask | Conversation] = [
        *evidence.sandboxes,
        *evidence.start_tasks,
        *evidence.conversations,
    ]
    for row in rows:
        name = f"{type(row).__name__} {row.id}"
        if (row.lease_owner is not None or row.lease_until is not None) and not _is_watched(row):
            yield f"{name} is still leased"
        if row.due_at is not None and not _is_watched(row):
            yield f"{name} is still due"
    for row in evidence.sandboxes:
        if row.generation != row.observed_generation:
            yield f"Sandbox {row.id}: generation {row.generation} is not observed"


def misreported(evidence: Evidence) -> Iterator[str]:
    """Sandboxes that the API lists with another status than their rows have."""
    if evidence.listed is None:
        return
    shown = {row.id: row.status for row in evidence.sandboxes if row.owner_id and row.status not in HIDDEN}
    for sandbox_id in sorted(shown.keys() | evidence.listed.keys()):
        expected, listed = shown.get(sandbox_id), evidence.listed.get(sandbox_id)
        if expected != listed:
            yield f"sandbox {sandbox_id} is listed as {listed}, expected {expected} from its row"


def illegal_histories(evidence: Evidence) -> Iterator[str]:
    """Illegal transitions, and histories that do not end with the row's status."""
    transitions: dict[str, list[SandboxTransition]] = {}
    for transition in sorted(evidence.transitions, key=lambda transition: transition.id or 0):
        transitions.setdefault(transition.sandbox_id, []).append(transition)
    for row in evidence.sandboxes:
        yield from _illegal_transitions(row, transitions.get(row.id, []))


def _illegal_transitions(row: Sandbox, transitions: Sequence[SandboxTransition]) -> Iterator[str]:
    at: str | None = None
    for transition in transitions:
        legal = transition.to_status == FIRST if at is None else transition.to_status in LEGAL_TRANSITIONS[at]
        if transition.from_status != at or not legal:
            yield f"sandbox {row.id}: the transition {transition.from_status} → {transition.to_status} follows {at}"
        at = transition.to_status
    if at != row.status:
        yield f"sandbox {row.id}: its history ends with {at}, its row has {row.status}"

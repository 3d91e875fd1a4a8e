"""The checker: compares the responses that clients got with the store and the engines once everything has settled."""

from collections import Counter
from collections.abc import Iterator

from shared.models import Sandbox
from shared.states import FINAL_STAGES, Desired, PauseKind, Reason, Stage, Status
from tests.drills.engine_checks import doubles, orphans, untrue
from tests.drills.evidence import Evidence
from tests.drills.requests import Outcome, Verb, last_desired_states
from tests.drills.row_checks import illegal_histories, misreported, unsettled

__all__ = ["Evidence", "check"]

FULFILLED = {
    Desired.RUNNING: Status.RUNNING,
    Desired.PAUSED: Status.PAUSED,
    Desired.STOPPED: Status.PAUSED,
    Desired.DELETED: Status.DELETED,
}


def check(evidence: Evidence) -> list[str]:
    """Every violation of the promise, as a message."""
    return [
        *_lost_desired_states(evidence),
        *_lost_starts(evidence),
        *_left_of_deleted_conversations(evidence),
        *_made_twice(evidence),
        *_lost_events(evidence),
        *doubles(evidence),
        *orphans(evidence),
        *unsettled(evidence),
        *untrue(evidence),
        *misreported(evidence),
        *illegal_histories(evidence),
    ]


def _lost_desired_states(evidence: Evidence) -> Iterator[str]:
    rows = {row.id: row for row in evidence.sandboxes}
    for sandbox_id, allowed in last_desired_states(evidence.history).items():
        row = rows.get(sandbox_id)
        if row is None:
            yield f"sandbox {sandbox_id} was acknowledged and has no row"
        elif row.desired not in {*allowed, *_withdrawn(row, evidence), *evidence.deadlines.get(row.id, ())}:
            yield f"sandbox {sandbox_id}: the last desired states were {sorted(allowed)}, the row has {row.desired}"
    for row in evidence.sandboxes:
        if not _is_fulfilled(row) and not _has_expected_failure(row, evidence):
            yield f"sandbox {row.id} should be {row.desired} and is {row.status} ({row.reason}: {row.detail})"


def _is_fulfilled(row: Sandbox) -> bool:
    frozen = row.pause_kind == PauseKind.FROZEN  # the container's memory is not freed
    return row.status == FULFILLED[Desired(row.desired)] and not (row.desired == Desired.STOPPED and frozen)


def _withdrawn(row: Sandbox, evidence: Evidence) -> set[Desired]:
    """DELETED if the service itself deletes the sandbox: its start failed, or it has no conversation left."""
    failed = {task.sandbox_id for task in evidence.start_tasks if task.made_sandbox and task.stage == Stage.ERROR}
    return {Desired.DELETED} if row.id in failed | _emptied(evidence) else set()


def _emptied(evidence: Evidence) -> set[str]:
    """The sandboxes whose conversations were all deleted."""
    deleted = {
        conversation.sandbox_id for conversation in evidence.conversations if conversation.deleted_at is not None
    }
    return deleted - {
        conversation.sandbox_id for conversation in evidence.conversations if conversation.deleted_at is None
    }


def _has_expected_failure(row: Sandbox, evidence: Evidence) -> bool:
    """Whether a fault explains the row. No fault explains an unfinished delete, or a failure without a reason."""
    known = row.reason is not None and row.reason != Reason.INTERNAL_ERROR
    is_inactive = row.status in (Status.RUNNING, Status.PAUSED, Status.ERROR)
    return is_inactive and row.desired != Desired.DELETED and known and evidence.is_expected(row)


def _made_twice(evidence: Evidence) -> Iterator[str]:
    """A sandbox that no client knows must belong to a request without a response."""
    known = {entry.subject for entry in evidence.history}
    for_starts = {task.sandbox_id for task in evidence.start_tasks}
    for_conversations = for_starts | {conversation.sandbox_id for conversation in evidence.conversations}
    asked_for = (row for row in evidence.sandboxes if not _is_pooled(row))
    unknown = [row.id for row in asked_for if row.id not in known | for_conversations]
    calls = {entry.call for entry in evidence.history if entry.verb == Verb.START}
    answered = {entry.call for entry in evidence.history if entry.outcome in (Outcome.OK, Outcome.FAILED)}
    if len(unknown) > len(calls - answered):
        yield f"{len(unknown)} sandboxes that no client knows, and {len(calls - answered)} requests without a response"


def _is_pooled(row: Sandbox) -> bool:
    """Whether the sandbox is in a warm pool: no user has claimed it yet."""
    return row.owner_id is None and row.boot_key is not None


def _lost_events(evidence: Evidence) -> Iterator[str]:
    stored = Counter(evidence.events)
    for conversation_id, event_id in evidence.reported:
        times = stored[conversation_id, event_id]
        if times != 1:
            yield f"event {event_id} of {conversation_id} was acknowledged and is stored {times} times"


def _lost_starts(evidence: Evidence) -> Iterator[str]:
    tasks = {task.id: task for task in evidence.start_tasks}
    forgotten = {entry.subject for entry in evidence.history if entry.verb == Verb.FORGET}
    for entry in evidence.history:
        accepted = entry.verb == Verb.CONVERSE and entry.outcome == Outcome.OK
        if accepted and entry.subject not in tasks and entry.subject not in forgotten:
            yield f"start task {entry.subject} was acknowledged and has no row"
        task = tasks.get(entry.subject or "")
        if entry.verb == Verb.CANCEL and entry.outcome == Outcome.OK and task and task.stage != Stage.ERROR:
            yield f"start task {task.id} was cancelled, and is {task.stage}"
        # The delete of a conversation that is still starting cancels the start, unless that fails at the same time.
        if entry.verb == Verb.FORGET and entry.outcome == Outcome.OK and task and task.stage != Stage.ERROR:
            yield f"the conversation of start task {entry.subject} was deleted, and its task still exists"
    sandboxes = {row.id: row for row in evidence.sandboxes}
    for task in evidence.start_tasks:
        if task.stage not in FINAL_STAGES:
            yield f"start task {task.id} is stuck in {task.stage}"
        if task.stage == Stage.ERROR and task.reason in (None, Reason.INTERNAL_ERROR):
            yield f"start task {task.id} failed without a reason"
        made = sandboxes.get(task.sandbox_id or "") if task.made_sandbox else None
        if task.stage == Stage.ERROR and made is not None and made.desired != Desired.DELETED:
            yield f"start task {task.id} failed and has left sandbox {made.id} behind"


def _left_of_deleted_conversations(evidence: Evidence) -> Iterator[str]:
    sandboxes = {row.id: row for row in evidence.sandboxes}
    for row in evidence.conversations:
        if row.deleted_at is None:
            continue
        if row.listed:
            yield f"conversation {row.id} was deleted and is listed"
        if any(conversation_id == row.id for conversation_id, _ in evidence.events):
            yield f"conversation {row.id} was deleted and has events"
        sandbox = sandboxes.get(row.sandbox_id)
        if row.awaits_sandbox and sandbox is not None and sandbox.status == Status.RUNNING:
            yield f"conversation {row.id} was deleted, its sandbox runs and still has it"

"""Was the promise kept? A pure comparison of what clients were told with what the store and the engine hold at rest."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from shared.models import Conversation, Sandbox, SandboxTransition, StartTask
from shared.states import MOVES, Desired, PauseKind, Reason, Stage, Status
from worker.containers import ContainerState, Listed
from worker.engine import SANDBOX_LABEL
from worker.sandbox_container import container_name


class Outcome(StrEnum):
    """What a client knows of a request."""

    INVOKED = "invoke"  # no answer: it may have happened or not, or may happen yet
    OK = "ok"
    FAILED = "fail"  # refused: it did not happen


class Verb(StrEnum):
    """What clients ask for."""

    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    DELETE = "delete"
    CONVERSE = "converse"


@dataclass(frozen=True)
class Entry:
    """One line of a history: request number `call` was sent, or was answered.

    Args:
        subject: the sandbox's id, or the start task's; None as long as the client has not learnt it.
    """

    call: int
    outcome: Outcome
    verb: Verb
    subject: str | None = None


@dataclass(frozen=True)
class Evidence:
    """All that was found once the service was given time to settle.

    Args:
        doomed: the specs whose sandboxes can't start; all others must.
    """

    history: Sequence[Entry] = ()
    sandboxes: Sequence[Sandbox] = ()
    transitions: Sequence[SandboxTransition] = ()
    start_tasks: Sequence[StartTask] = ()
    conversations: Sequence[Conversation] = ()
    containers: Sequence[Listed] = ()
    volumes: Sequence[str] = ()
    doomed: frozenset[str] = field(default_factory=frozenset)


WISHES = {
    Verb.START: Desired.RUNNING,
    Verb.RESUME: Desired.RUNNING,
    Verb.PAUSE: Desired.PAUSED,
    Verb.DELETE: Desired.DELETED,
}
FULFILLED = {
    Desired.RUNNING: Status.RUNNING,
    Desired.PAUSED: Status.PAUSED,
    Desired.DELETED: Status.DELETED,
}
STOPPED = {ContainerState.CREATED, ContainerState.EXITED}


def check(evidence: Evidence) -> list[str]:
    """Every violation of the promise, in words; none: it was kept."""
    return [
        *_lost_wishes(evidence),
        *_lost_starts(evidence),
        *_doubles(evidence),
        *_orphans(evidence),
        *_unsettled(evidence),
        *_untrue(evidence),
        *_illegal_histories(evidence),
    ]


# --- what was acknowledged ------------------------------------------------------------------------------------------


def _lost_wishes(evidence: Evidence) -> Iterator[str]:
    rows = {row.id: row for row in evidence.sandboxes}
    for sandbox_id, allowed in _last_wishes(evidence.history).items():
        row = rows.get(sandbox_id)
        if row is None:
            yield f"sandbox {sandbox_id} was acknowledged and has no row"
        elif row.desired not in {*allowed, *_withdrawn(row, evidence)}:
            yield f"sandbox {sandbox_id}: the last wishes were {sorted(allowed)}, the row has {row.desired}"
    for row in evidence.sandboxes:
        if row.status != FULFILLED[Desired(row.desired)] and not _has_excuse(row, evidence):
            yield f"sandbox {row.id} was to be {row.desired} and is {row.status} ({row.reason})"


def _last_wishes(history: Iterable[Entry]) -> dict[str, set[Desired]]:
    """What each sandbox may be wished to be: its last acknowledged wish, or one that was not answered.

    Clients ask for one thing at a time of a sandbox: of two answers at once nobody can say which came last.
    """
    allowed: dict[str, set[Desired]] = {}
    open_calls: dict[int, Entry] = {}
    for entry in history:
        if entry.verb == Verb.CONVERSE:
            continue
        if entry.outcome == Outcome.INVOKED:
            open_calls[entry.call] = entry
            continue
        open_calls.pop(entry.call, None)
        if entry.outcome == Outcome.OK and entry.subject:
            before = allowed.get(entry.subject, set())
            # Nothing overtakes a delete.
            allowed[entry.subject] = before if before == {Desired.DELETED} else {WISHES[entry.verb]}
    for entry in open_calls.values():
        if entry.subject in allowed and allowed[entry.subject] != {Desired.DELETED}:
            allowed[entry.subject].add(WISHES[entry.verb])
    return allowed


def _withdrawn(row: Sandbox, evidence: Evidence) -> set[Desired]:
    """The service itself wishes a sandbox away that it made for a conversation that failed."""
    failed = (task.sandbox_id for task in evidence.start_tasks if task.made_sandbox and task.stage == Stage.ERROR)
    return {Desired.DELETED} if row.id in failed else set()


def _has_excuse(row: Sandbox, evidence: Evidence) -> bool:
    known = row.reason is not None and row.reason != Reason.INTERNAL_ERROR
    return row.status == Status.ERROR and row.desired != Desired.DELETED and known and row.spec_id in evidence.doomed


def _lost_starts(evidence: Evidence) -> Iterator[str]:
    tasks = {task.id: task for task in evidence.start_tasks}
    for entry in evidence.history:
        if entry.verb == Verb.CONVERSE and entry.outcome == Outcome.OK and entry.subject not in tasks:
            yield f"start task {entry.subject} was acknowledged and has no row"
    sandboxes = {row.id: row for row in evidence.sandboxes}
    for task in evidence.start_tasks:
        if not Stage(task.stage).is_final:
            yield f"start task {task.id} is stuck in {task.stage}"
        if task.stage == Stage.ERROR and task.reason in (None, Reason.INTERNAL_ERROR):
            yield f"start task {task.id} failed without a reason"
        made = sandboxes.get(task.sandbox_id or "") if task.made_sandbox else None
        if task.stage == Stage.ERROR and made is not None and made.desired != Desired.DELETED:
            yield f"start task {task.id} failed and has left sandbox {made.id} behind"


# --- what the engine holds ------------------------------------------------------------------------------------------


def _doubles(evidence: Evidence) -> Iterator[str]:
    counts = Counter(item.labels.get(SANDBOX_LABEL, item.name) for item in evidence.containers)
    for sandbox_id, count in counts.items():
        if count > 1:
            yield f"sandbox {sandbox_id} has {count} containers"


def _orphans(evidence: Evidence) -> Iterator[str]:
    owned = {container_name(row.id) for row in evidence.sandboxes if _may_own(row)}
    for item in evidence.containers:
        if item.name not in owned:
            yield f"container {item.name} is nobody's"
    for name in evidence.volumes:
        if name not in owned:
            yield f"volume {name} is nobody's"


def _may_own(row: Sandbox) -> bool:
    never_was = row.status == Status.ERROR and row.ready_at is None
    return row.status != Status.DELETED and not never_was


# --- what the rows say ----------------------------------------------------------------------------------------------


def _unsettled(evidence: Evidence) -> Iterator[str]:
    rows: list[Sandbox | StartTask | Conversation] = [
        *evidence.sandboxes,
        *evidence.start_tasks,
        *evidence.conversations,
    ]
    for row in rows:
        name = f"{type(row).__name__} {row.id}"
        if row.lease_owner is not None or row.lease_until is not None:
            yield f"{name} is still held"
        if row.due_at is not None:
            yield f"{name} still wants a hand"
    for row in evidence.sandboxes:
        if row.generation != row.observed_generation:
            yield f"Sandbox {row.id}: wish {row.generation} is not answered"


def _untrue(evidence: Evidence) -> Iterator[str]:
    states: Mapping[str, ContainerState] = {item.name: item.state for item in evidence.containers}
    for row in evidence.sandboxes:
        state = states.get(container_name(row.id), ContainerState.ABSENT)
        if state not in _true_states(row):
            yield f"sandbox {row.id} is said to be {row.status} ({row.pause_kind}); its container is {state}"
        if row.status in (Status.RUNNING, Status.PAUSED) and container_name(row.id) not in evidence.volumes:
            yield f"sandbox {row.id} is said to be {row.status}; its volume is gone"


def _true_states(row: Sandbox) -> set[ContainerState]:
    match Status(row.status):
        case Status.RUNNING:
            return {ContainerState.RUNNING}
        case Status.PAUSED:
            return {ContainerState.FROZEN} if row.pause_kind == PauseKind.FROZEN else STOPPED
        case Status.ERROR:
            return {ContainerState.ABSENT} if row.ready_at is None else {*STOPPED, ContainerState.ABSENT}
        case Status.DELETED:
            return {ContainerState.ABSENT}
        case _:
            return set()  # on its way, and that it must not be at rest


def _illegal_histories(evidence: Evidence) -> Iterator[str]:
    moves: dict[str, list[SandboxTransition]] = {}
    for move in sorted(evidence.transitions, key=lambda move: move.id or 0):
        moves.setdefault(move.sandbox_id, []).append(move)
    for row in evidence.sandboxes:
        yield from _illegal_moves(row, moves.get(row.id, []))


def _illegal_moves(row: Sandbox, moves: Sequence[SandboxTransition]) -> Iterator[str]:
    at: str | None = None
    for move in moves:
        legal = move.to_status == Status.STARTING if at is None else move.to_status in MOVES[Status(at)]
        if move.from_status != at or not legal:
            yield f"sandbox {row.id}: the move {move.from_status} → {move.to_status} follows {at}"
        at = move.to_status
    if at != row.status:
        yield f"sandbox {row.id}: its history ends with {at}, its row says {row.status}"

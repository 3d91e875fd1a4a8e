"""Each kind of violation, put in by hand, is found; what keeps the promise is let pass."""

from dataclasses import replace
from typing import Any

import pytest

from shared.clock import now
from shared.models import Sandbox, SandboxTransition, StartTask
from shared.states import Desired, PauseKind, Reason, Stage, Status
from tests.faults.checker import Entry, Evidence, Outcome, Verb, check
from worker.containers import ContainerState, Listed
from worker.engine import SANDBOX_LABEL

DOOMED = "broken"


def sandbox(sandbox_id: str = "s", status: Status = Status.RUNNING, **columns: Any) -> Sandbox:
    defaults: dict[str, Any] = {
        "spec_id": "tiny",
        "desired": {Status.PAUSED: Desired.PAUSED, Status.DELETED: Desired.DELETED}.get(status, Desired.RUNNING),
        "generation": 1,
        "observed_generation": 1,
        "ready_at": now(),
        "session_key": "",
        "session_key_digest": "",
    }
    return Sandbox(id=sandbox_id, status=status, **(defaults | columns))


def start_task(stage: Stage = Stage.ERROR, **columns: Any) -> StartTask:
    defaults: dict[str, Any] = {"owner_id": "u", "conversation_id": "c", "request": {}, "reason": Reason.CLONE_FAILED}
    return StartTask(id="t", stage=stage, **(defaults | columns))


def container(state: ContainerState = ContainerState.RUNNING, name: str = "aw-s") -> Listed:
    return Listed(name, state, {SANDBOX_LABEL: "s"})


def path(*statuses: Status, sandbox_id: str = "s") -> list[SandboxTransition]:
    befores = (None, *statuses)
    pairs = zip(befores, statuses, strict=False)
    return [SandboxTransition(sandbox_id=sandbox_id, from_status=one, to_status=two) for one, two in pairs]


def told(call: int, outcome: Outcome, verb: Verb, subject: str | None = "s") -> Entry:
    return Entry(call, outcome, verb, subject)


STARTED = (told(1, Outcome.INVOKED, Verb.START, None), told(1, Outcome.OK, Verb.START))
FINE = Evidence(
    history=STARTED,
    sandboxes=[sandbox()],
    transitions=path(Status.STARTING, Status.RUNNING),
    containers=[container()],
    volumes=["aw-s"],
    doomed=frozenset({DOOMED}),
)
PAUSED = replace(
    FINE,
    sandboxes=[sandbox(status=Status.PAUSED, pause_kind=PauseKind.FROZEN)],
    transitions=path(Status.STARTING, Status.RUNNING, Status.PAUSED),
    containers=[container(ContainerState.FROZEN)],
)
GONE = replace(
    FINE,
    sandboxes=[sandbox(status=Status.DELETED)],
    transitions=path(Status.STARTING, Status.DELETING, Status.DELETED),
    containers=[],
    volumes=[],
)
FAILED = replace(
    FINE,
    sandboxes=[sandbox(status=Status.ERROR, spec_id=DOOMED, reason=Reason.EXIT_CODE, ready_at=None)],
    transitions=path(Status.STARTING, Status.ERROR),
    containers=[],
    volumes=[],
)
UNANSWERED_PAUSE = (*STARTED, told(2, Outcome.INVOKED, Verb.PAUSE))
ANSWERED_PAUSE = (*UNANSWERED_PAUSE, told(2, Outcome.OK, Verb.PAUSE))
REFUSED_PAUSE = (*UNANSWERED_PAUSE, told(2, Outcome.FAILED, Verb.PAUSE))
DELETED = (*STARTED, told(2, Outcome.INVOKED, Verb.DELETE), told(2, Outcome.OK, Verb.DELETE))
CONVERSE = (told(1, Outcome.INVOKED, Verb.CONVERSE, None), told(1, Outcome.OK, Verb.CONVERSE, "t"))


@pytest.mark.parametrize(
    "evidence",
    [
        Evidence(),
        FINE,
        replace(FINE, history=(STARTED[0],)),
        replace(FINE, history=UNANSWERED_PAUSE),
        replace(PAUSED, history=UNANSWERED_PAUSE),
        replace(PAUSED, history=ANSWERED_PAUSE),
        replace(FINE, history=REFUSED_PAUSE),
        replace(GONE, history=DELETED),
        FAILED,
        replace(GONE, history=CONVERSE, start_tasks=[start_task(sandbox_id="s", made_sandbox=True)]),
    ],
)
def test_kept_promise_passes(evidence: Evidence) -> None:
    assert check(evidence) == []


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (replace(FINE, sandboxes=[], containers=[], volumes=[]), "has no row"),
        (replace(FINE, history=ANSWERED_PAUSE), "the row has RUNNING"),
        (replace(PAUSED, history=REFUSED_PAUSE), "the row has PAUSED"),
        (replace(FINE, history=(*DELETED, told(3, Outcome.INVOKED, Verb.RESUME))), "the row has RUNNING"),
        (replace(FINE, history=DELETED), "the row has RUNNING"),
        (replace(FAILED, doomed=frozenset()), "is ERROR"),
        (replace(FAILED, sandboxes=[sandbox(status=Status.ERROR, spec_id=DOOMED, ready_at=None)]), "ERROR (None)"),
        (replace(PAUSED, sandboxes=[sandbox(desired=Desired.PAUSED)]), "was to be PAUSED and is RUNNING"),
        (replace(FINE, history=(*STARTED, *CONVERSE)), "start task t was acknowledged and has no row"),
        (replace(FINE, start_tasks=[start_task(Stage.WAITING_FOR_SANDBOX)]), "stuck in WAITING_FOR_SANDBOX"),
        (replace(FINE, start_tasks=[start_task(reason=None)]), "without a reason"),
        (replace(FINE, start_tasks=[start_task(sandbox_id="s", made_sandbox=True)]), "left sandbox s behind"),
        (replace(FINE, containers=[container(), container(name="aw-s-2")]), "sandbox s has 2 containers"),
        (replace(GONE, history=(), containers=[container()]), "container aw-s is nobody's"),
        (replace(FINE, volumes=["aw-s", "aw-x"]), "volume aw-x is nobody's"),
        (replace(FAILED, volumes=["aw-s"]), "volume aw-s is nobody's"),
        (replace(FINE, sandboxes=[sandbox(lease_owner="w", lease_until=now())]), "Sandbox s is still held"),
        (replace(FINE, sandboxes=[sandbox(due_at=now())]), "Sandbox s still wants a hand"),
        (replace(FINE, start_tasks=[start_task(due_at=now())]), "StartTask t still wants a hand"),
        (replace(FINE, sandboxes=[sandbox(generation=2)]), "wish 2 is not answered"),
        (replace(FINE, containers=[container(ContainerState.EXITED)]), "its container is exited"),
        (replace(FINE, containers=[]), "its container is absent"),
        (replace(FINE, volumes=[]), "its volume is gone"),
        (replace(PAUSED, containers=[container(ContainerState.EXITED)]), "PAUSED (FROZEN); its container is exited"),
        (replace(FINE, sandboxes=[sandbox(status=Status.STARTING)]), "said to be STARTING"),
        (replace(FINE, transitions=path(Status.STARTING)), "ends with STARTING, its row says RUNNING"),
        (replace(FINE, transitions=path(Status.RUNNING)), "the move None → RUNNING follows None"),
        (
            replace(GONE, transitions=path(Status.STARTING, Status.DELETED)),
            "the move STARTING → DELETED follows STARTING",
        ),
        (
            replace(FINE, transitions=[*path(Status.STARTING), *path(Status.STARTING, Status.RUNNING)]),
            "the move None → STARTING follows STARTING",
        ),
    ],
)
def test_violation_is_found(evidence: Evidence, words: str) -> None:
    found = check(evidence)
    assert any(words in violation for violation in found), found

"""The checker finds each kind of violation, and accepts evidence without one."""

from dataclasses import replace
from typing import Any

import pytest

from shared.clock import after, now
from shared.models import Conversation, Sandbox, SandboxTransition, StartTask
from shared.states import TRANSITIONS, Desired, PauseKind, Reason, Stage, Status
from tests.drills.checker import check
from tests.drills.engine_listing import SANDBOX_LABEL, Container
from tests.drills.evidence import Evidence
from tests.drills.requests import Entry, Outcome, Verb
from tests.drills.row_checks import LEGAL_TRANSITIONS

DOOMED = "broken"
LATER = after(3600)


def sandbox(sandbox_id: str = "s", status: Status = Status.RUNNING, **columns: Any) -> Sandbox:
    defaults: dict[str, Any] = {
        "owner_id": "u",
        "spec_id": "tiny",
        "desired": {Status.PAUSED: Desired.PAUSED, Status.DELETED: Desired.DELETED}.get(status, Desired.RUNNING),
        "generation": 1,
        "observed_generation": 1,
        "ready_at": now(),
        "session_key": "",
        "session_key_digest": "",
    }
    return Sandbox(id=sandbox_id, status=status, **(defaults | columns))


def quarantined(**columns: Any) -> Sandbox:
    """A sandbox with a quarantined container or volume; without an owner, it is a warm sandbox."""
    return sandbox(status=Status.DELETED, reason=Reason.ALREADY_USED, boot_key="b", spec_id=DOOMED, **columns)


def frozen(**columns: Any) -> Sandbox:
    return sandbox(status=Status.PAUSED, pause_kind=PauseKind.FROZEN, **columns)


def start_task(stage: Stage = Stage.ERROR, **columns: Any) -> StartTask:
    defaults: dict[str, Any] = {"owner_id": "u", "conversation_id": "c", "request": {}, "reason": Reason.CLONE_FAILED}
    return StartTask(id="t", stage=stage, **(defaults | columns))


def conversation(**columns: Any) -> Conversation:
    return Conversation(id="c", owner_id="u", execution_status="finished", **columns)


def container(state: str = "running", name: str = "aw-s") -> Container:
    return Container(name, state, {SANDBOX_LABEL: "s"})


def path(*statuses: Status, sandbox_id: str = "s") -> list[SandboxTransition]:
    befores = (None, *statuses)
    pairs = zip(befores, statuses, strict=False)
    return [SandboxTransition(sandbox_id=sandbox_id, from_status=one, to_status=two) for one, two in pairs]


def entry(call: int, outcome: Outcome, verb: Verb, subject: str | None = "s") -> Entry:
    return Entry(call, outcome, verb, subject)


STARTED = (entry(1, Outcome.INVOKED, Verb.START, None), entry(1, Outcome.OK, Verb.START))
FINE = Evidence(
    history=STARTED,
    sandboxes=[sandbox()],
    transitions=path(Status.STARTING, Status.RUNNING),
    containers=[container()],
    volumes=["aw-s"],
    is_expected=lambda row: row.spec_id == DOOMED,
)
PAUSED = replace(
    FINE,
    sandboxes=[frozen()],
    transitions=path(Status.STARTING, Status.RUNNING, Status.PAUSED),
    containers=[container("paused")],
)
GONE = replace(
    FINE,
    sandboxes=[sandbox(status=Status.DELETED)],
    transitions=path(Status.STARTING, Status.DELETING, Status.DELETED),
    containers=[],
    volumes=[],
)
KEPT: dict[str, Any] = {"containers": [container("exited")], "volumes": ["aw-s"]}
RUNS: dict[str, Any] = {"containers": [container()], "volumes": ["aw-s"]}
STOPPED = replace(
    PAUSED,
    sandboxes=[sandbox(status=Status.PAUSED, desired=Desired.STOPPED, pause_kind=PauseKind.STOPPED)],
    containers=[container("exited")],
)
# Stopped before it was ever ready: it need not have a container or a volume.
NEVER_RAN = replace(
    GONE,
    sandboxes=[sandbox(status=Status.PAUSED, desired=Desired.STOPPED, pause_kind=PauseKind.STOPPED, ready_at=None)],
    transitions=path(Status.STARTING, Status.PAUSED),
)
FAILED = replace(
    FINE,
    sandboxes=[sandbox(status=Status.ERROR, spec_id=DOOMED, reason=Reason.EXIT_CODE, ready_at=None)],
    transitions=path(Status.STARTING, Status.ERROR),
    containers=[],
    volumes=[],
)
PENDING_PAUSE = (*STARTED, entry(2, Outcome.INVOKED, Verb.PAUSE))
COMPLETED_PAUSE = (*PENDING_PAUSE, entry(2, Outcome.OK, Verb.PAUSE))
ANSWERED_STOP = (*STARTED, entry(2, Outcome.INVOKED, Verb.STOP), entry(2, Outcome.OK, Verb.STOP))
REFUSED_PAUSE = (*PENDING_PAUSE, entry(2, Outcome.FAILED, Verb.PAUSE))
RESUME = (entry(3, Outcome.INVOKED, Verb.RESUME), entry(3, Outcome.OK, Verb.RESUME))
# Two concurrent requests; two in sequence; one without a response, and one after it.
SIMULTANEOUS = (*PENDING_PAUSE, *RESUME, entry(2, Outcome.OK, Verb.PAUSE))
OVERTAKEN_PAUSE = (*COMPLETED_PAUSE, *RESUME)
FORGOTTEN_PAUSE = (*PENDING_PAUSE, entry(2, Outcome.LOST, Verb.PAUSE), *RESUME)
DELETED = (*STARTED, entry(2, Outcome.INVOKED, Verb.DELETE), entry(2, Outcome.OK, Verb.DELETE))
CONVERSE = (entry(1, Outcome.INVOKED, Verb.CONVERSE, None), entry(1, Outcome.OK, Verb.CONVERSE, "t"))

FORGET = (entry(2, Outcome.INVOKED, Verb.FORGET, "t"), entry(2, Outcome.OK, Verb.FORGET, "t"))


@pytest.mark.parametrize(
    "evidence",
    [
        Evidence(),
        FINE,
        replace(FINE, history=(STARTED[0],)),
        replace(FINE, history=PENDING_PAUSE),
        replace(PAUSED, history=PENDING_PAUSE),
        replace(PAUSED, history=COMPLETED_PAUSE),
        replace(PAUSED, history=SIMULTANEOUS),
        replace(FINE, history=SIMULTANEOUS),
        replace(FINE, reported=[("c", "e")], events=[("c", "e"), ("c", "f")]),
        replace(FINE, history=REFUSED_PAUSE),
        replace(GONE, history=DELETED),
        replace(STOPPED, history=ANSWERED_STOP),
        replace(NEVER_RAN, history=ANSWERED_STOP),
        FAILED,
        replace(GONE, history=CONVERSE, start_tasks=[start_task(sandbox_id="s", made_sandbox=True)]),
        # A report ended the run. The next check of it was due later, and finds nothing to do.
        replace(FINE, conversations=[conversation(due_at=LATER)]),
        replace(FINE, listed={"s": "RUNNING"}),
        replace(FINE, sandboxes=[sandbox(owner_id=None, boot_key="b")], history=(), listed={}),
        replace(GONE, history=DELETED, listed={}),
        replace(GONE, history=(), sandboxes=[quarantined(owner_id=None)], volumes=["aw-s"]),
        replace(GONE, history=DELETED, sandboxes=[quarantined()], resumed={"s"}, **KEPT),
        # The sandbox's own deadline paused it, without a request.
        replace(PAUSED, history=STARTED, deadlines={"s": {Desired.PAUSED}}),
        # The delete of a conversation that is starting cancels the start.
        replace(FINE, history=(*STARTED, *FORGET), start_tasks=[start_task(reason=Reason.CANCELLED)]),
    ],
)
def test_evidence_without_a_violation_passes(evidence: Evidence) -> None:
    assert check(evidence) == []


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (replace(FINE, sandboxes=[], containers=[], volumes=[]), "has no row"),
        (replace(FINE, history=COMPLETED_PAUSE), "the row has RUNNING"),
        (replace(PAUSED, history=REFUSED_PAUSE), "the row has PAUSED"),
        (replace(FINE, history=(*DELETED, entry(3, Outcome.INVOKED, Verb.RESUME))), "the row has RUNNING"),
        (replace(FINE, history=DELETED), "the row has RUNNING"),
        (replace(FAILED, is_expected=lambda _: False), "is ERROR"),
        (
            replace(FAILED, sandboxes=[sandbox(status=Status.ERROR, spec_id=DOOMED, ready_at=None)]),
            "(None: None)",
        ),
        (replace(PAUSED, sandboxes=[sandbox(desired=Desired.PAUSED)]), "should be PAUSED and is RUNNING"),
        (replace(PAUSED, history=OVERTAKEN_PAUSE), "the row has PAUSED"),
        (replace(PAUSED, history=FORGOTTEN_PAUSE), "the row has PAUSED"),
        (replace(FINE, sandboxes=[sandbox(), sandbox("t")]), "1 sandboxes that no client knows"),
        (replace(FINE, reported=[("c", "e")]), "event e of c was acknowledged and is stored 0 times"),
        (replace(FINE, reported=[("c", "e")], events=[("c", "e")] * 2), "stored 2 times"),
        (replace(STOPPED, sandboxes=PAUSED.sandboxes, history=ANSWERED_STOP), "the row has PAUSED"),
        (replace(STOPPED, sandboxes=[frozen(desired=Desired.STOPPED)]), "should be STOPPED and is PAUSED"),
        (replace(FINE, history=(*STARTED, *CONVERSE)), "start task t was acknowledged and has no row"),
        (replace(FINE, start_tasks=[start_task(Stage.WAITING_FOR_SANDBOX)]), "stuck in WAITING_FOR_SANDBOX"),
        (replace(FINE, start_tasks=[start_task(reason=None)]), "without a reason"),
        (replace(FINE, start_tasks=[start_task(sandbox_id="s", made_sandbox=True)]), "left sandbox s behind"),
        (replace(FINE, containers=[container(), container(name="aw-s-2")]), "sandbox s has 2 containers"),
        (replace(GONE, history=(), containers=[container()]), "container aw-s belongs to no row"),
        (replace(FINE, volumes=["aw-s", "aw-x"]), "volume aw-x belongs to no row"),
        (replace(FAILED, volumes=["aw-s"]), "volume aw-s belongs to no row"),
        (replace(GONE, history=(), sandboxes=[quarantined()], volumes=["aw-s"]), "volume aw-s belongs to no row"),
        (
            replace(GONE, history=(), sandboxes=[quarantined()], resumed={"t"}, **KEPT),
            "container aw-s belongs to no row",
        ),
        (replace(GONE, history=(), sandboxes=[quarantined()], resumed={"s"}, **RUNS), "its container is running"),
        (replace(FINE, sandboxes=[sandbox(lease_owner="w", lease_until=now())]), "Sandbox s is still leased"),
        (replace(FINE, sandboxes=[sandbox(due_at=now())]), "Sandbox s is still due"),
        (replace(FINE, start_tasks=[start_task(due_at=now())]), "StartTask t is still due"),
        (replace(FINE, conversations=[conversation(due_at=now())]), "Conversation c is still due"),
        (replace(FINE, conversations=[conversation(due_at=LATER, awaits_sandbox=True)]), "Conversation c is still due"),
        (replace(FINE, conversations=[conversation(due_at=LATER, deleted_at=now())]), "Conversation c is still due"),
        (replace(FINE, conversations=[conversation(due_at=LATER, attempt=1)]), "Conversation c is still due"),
        (replace(FINE, sandboxes=[sandbox(generation=2)]), "generation 2 is not observed"),
        (replace(FINE, containers=[container("exited")]), "its container is exited"),
        (replace(FINE, containers=[]), "its container is absent"),
        (replace(FINE, volumes=[]), "its volume does not exist"),
        (replace(PAUSED, containers=[container("exited")]), "PAUSED (FROZEN); its container is exited"),
        (replace(FINE, sandboxes=[sandbox(status=Status.STARTING)]), "has the status STARTING"),
        (replace(FINE, transitions=path(Status.STARTING)), "ends with STARTING, its row has RUNNING"),
        (replace(FINE, transitions=path(Status.RUNNING)), "the transition None → RUNNING follows None"),
        (
            replace(GONE, transitions=path(Status.STARTING, Status.DELETED)),
            "the transition STARTING → DELETED follows STARTING",
        ),
        (
            replace(FINE, transitions=path(Status.STARTING, Status.DELETING, Status.RUNNING)),
            "the transition DELETING → RUNNING follows DELETING",
        ),
        (replace(PAUSED, history=STARTED, deadlines={"s": {Desired.DELETED}}), "the row has PAUSED"),
        (
            replace(FINE, history=(*STARTED, *FORGET), start_tasks=[start_task(Stage.READY, reason=None)]),
            "was deleted, and its task still exists",
        ),
        (replace(FINE, strays=["container aw-s has the label of no installation here: None"]), "no installation here"),
        (replace(FINE, listed={"s": "PAUSED"}), "sandbox s is listed as PAUSED, expected RUNNING from its row"),
        (replace(FINE, listed={}), "sandbox s is listed as None, expected RUNNING from its row"),
        (replace(GONE, listed={"s": "RUNNING"}), "sandbox s is listed as RUNNING, expected None from its row"),
        (replace(FINE, listed={"s": "RUNNING", "t": "RUNNING"}), "sandbox t is listed as RUNNING"),
        (
            replace(FINE, sandboxes=[sandbox(owner_id=None, boot_key="b")], history=(), listed={"s": "RUNNING"}),
            "sandbox s is listed as RUNNING, expected None from its row",
        ),
        (
            replace(FINE, transitions=[*path(Status.STARTING), *path(Status.STARTING, Status.RUNNING)]),
            "the transition None → STARTING follows STARTING",
        ),
    ],
)
def test_violation_is_found(evidence: Evidence, words: str) -> None:
    found = check(evidence)
    assert any(words in violation for violation in found), found


def test_legal_transitions_of_the_checker_match_the_product() -> None:
    """The checker has its own table, so a change of the legal transitions needs an edit in both places."""
    product = {status.value: {after.value for after in allowed} for status, allowed in TRANSITIONS.items()}
    checker = {status: set(allowed) for status, allowed in LEGAL_TRANSITIONS.items()}
    assert product == checker, (
        "`shared.states.TRANSITIONS` and `tests.drills.row_checks.LEGAL_TRANSITIONS` (the checker) differ. "
        "If the states have changed on purpose, change both; if not, fix `shared.states.TRANSITIONS`."
    )

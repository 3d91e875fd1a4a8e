"""RUNNING means that the agent server answers: one that has stopped doing so is told of, and nobody else suffers."""

import threading
from collections import Counter
from dataclasses import replace

import pytest

from shared.clock import after
from shared.models import Sandbox
from shared.states import Desired, PauseKind, Reason, Status
from tests.doubles import PromptExecutor
from tests.factories import Person, make_node, make_sandbox
from tests.fakes.engine import IMAGE, FakeEngine
from tests.waiting import eventually
from tests.worker.scenes import assert_at_rest, change, deliver, row, running, wish
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState
from worker.loops.health_monitor import TURNS, LivenessMonitor, open_watch
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile

PROBES = 4


@pytest.fixture
def context(context: WorkerContext) -> WorkerContext:
    """A worker that bears with three probes without an answer."""
    settings = context.settings.model_copy(update={"health_probe_seconds": 30.0, "health_timeout": 30.0 * PROBES})
    return replace(context, settings=settings)


@pytest.fixture
def watch(context: WorkerContext) -> LivenessMonitor:
    return LivenessMonitor(context, probes=PromptExecutor(), silences=PromptExecutor())


def ask(watch: LivenessMonitor, intervals: int = 1) -> None:
    """Ask everybody so many times."""
    for _ in range(intervals * len(TURNS)):
        watch.look()


def test_server_that_is_silent_for_too_long_is_an_error(
    context: WorkerContext, user: Person, engine: FakeEngine, watch: LivenessMonitor
) -> None:
    silent, well = running(context, user), running(context, user)
    engine.silent = {container_name(silent)}
    ask(watch, PROBES - 1)
    assert row(context, Sandbox, silent).status == Status.RUNNING
    ask(watch)
    found = row(context, Sandbox, silent)
    assert (found.status, found.reason) == (Status.ERROR, Reason.HEALTH_TIMEOUT)
    assert "no answer from the agent server in 120 s" in (found.detail or "")
    assert "the last line" in (found.detail or "")
    assert_at_rest(found)
    assert engine.containers[container_name(silent)].state == ContainerState.EXITED
    assert container_name(silent) in engine.volumes
    assert row(context, Sandbox, well).status == Status.RUNNING
    engine.silent.clear()
    wish(context, silent, Desired.RUNNING)
    reconcile(context, silent)
    assert row(context, Sandbox, silent).status == Status.RUNNING


def test_server_that_answers_now_and_then_is_left_alone(
    context: WorkerContext, user: Person, engine: FakeEngine, watch: LivenessMonitor
) -> None:
    sandbox_id = running(context, user)
    for _ in range(3):
        engine.silent = {container_name(sandbox_id)}
        ask(watch, PROBES - 1)
        engine.silent.clear()
        ask(watch)
    assert row(context, Sandbox, sandbox_id).status == Status.RUNNING


def test_server_that_answers_at_the_last_moment_is_left_alone(
    context: WorkerContext, user: Person, engine: FakeEngine, watch: LivenessMonitor
) -> None:
    sandbox_id = running(context, user)
    engine.silent = {container_name(sandbox_id)}
    ask(watch, PROBES - 1)
    engine.before["observe"] = lambda _name: engine.silent.clear()
    ask(watch)
    found = row(context, Sandbox, sandbox_id)
    assert found.status == Status.RUNNING
    assert_at_rest(found)


def test_silences_before_and_after_a_boot_do_not_add_up(
    context: WorkerContext, user: Person, engine: FakeEngine, watch: LivenessMonitor
) -> None:
    sandbox_id = running(context, user)
    for _ in range(2):
        engine.silent = {container_name(sandbox_id)}
        ask(watch, PROBES - 1)
        engine.silent.clear()
        for desired in (Desired.PAUSED, Desired.RUNNING):
            wish(context, sandbox_id, desired)
            reconcile(context, sandbox_id)
    assert row(context, Sandbox, sandbox_id).status == Status.RUNNING


def test_wish_for_a_silent_sandbox_is_not_cut_short(
    context: WorkerContext, user: Person, engine: FakeEngine, watch: LivenessMonitor
) -> None:
    """Resumed at the last moment, it is given the time that a resume is given."""
    sandbox_id = running(context, user)
    engine.silent = {container_name(sandbox_id)}
    ask(watch, PROBES - 1)

    def resume(_name: str) -> None:
        engine.before.clear()
        wish(context, sandbox_id, Desired.RUNNING)

    engine.before["observe"] = resume
    ask(watch)
    found = row(context, Sandbox, sandbox_id)
    assert found.status == Status.RUNNING
    assert found.due_at is not None


@pytest.mark.parametrize(
    "columns",
    [
        {"status": Status.PAUSED, "pause_kind": PauseKind.FROZEN},
        {"status": Status.ERROR},
        {"node_id": "node-b"},
        {"due_at": after(60)},
        {"lease_owner": "worker-2", "lease_until": after(60)},
    ],
)
def test_sandboxes_that_do_not_run_are_not_probed(
    context: WorkerContext, user: Person, watch: LivenessMonitor, engine: FakeEngine, columns: dict[str, object]
) -> None:
    make_node(context.database, "node-b")
    asked: list[str] = []
    sandbox_id = running(context, user)
    engine.asked = asked.append
    ask(watch)
    assert len(asked) == 1
    change(context, Sandbox, sandbox_id, **columns)
    ask(watch, PROBES)
    assert len(asked) == 1


def test_stranger_at_the_address_is_told_of_at_once(
    context: WorkerContext, user: Person, engine: FakeEngine, watch: LivenessMonitor
) -> None:
    sandbox_id = running(context, user)
    engine.containers[container_name(sandbox_id)].files = {"/": b'{"session_api_keys": ["another"]}'}
    ask(watch)
    deliver(context)
    assert row(context, Sandbox, sandbox_id).reason == Reason.WRONG_SERVER


def test_row_that_can_not_be_asked_harms_no_other(context: WorkerContext, user: Person, watch: LivenessMonitor) -> None:
    defective = make_sandbox(context.database, user, spec_id=IMAGE, id="a" + "0" * 31, session_key="damaged")
    gone = make_sandbox(context.database, user, spec_id=IMAGE, id="a" + "1" * 31)
    ask(watch, PROBES)
    assert row(context, Sandbox, defective.id).status == Status.RUNNING
    assert row(context, Sandbox, gone.id).reason == Reason.CONTAINER_MISSING


def test_server_that_holds_a_probe_delays_no_other(context: WorkerContext, user: Person, engine: FakeEngine) -> None:
    """It is asked once for as long as it does not answer, and no round waits for it."""
    held, asked = threading.Event(), Counter[str]()
    stuck, well = (container_name(running(context, user)) for _ in range(2))

    def hold(name: str) -> None:
        asked[name] += 1
        if name == stuck:
            held.wait(30)

    engine.asked = hold
    watch = open_watch(context)
    try:
        for intervals in range(1, 4):
            ask(watch)
            eventually(lambda: asked[well] >= intervals)  # noqa: B023 - called at once
        assert asked[stuck] == 1
    finally:
        held.set()
        watch.close()


def test_engine_that_stands_still_delays_no_probe(context: WorkerContext, user: Person, engine: FakeEngine) -> None:
    """What follows from a silence needs the engine: it is done once at a time, and apart."""
    held, observed, asked = threading.Event(), Counter[str](), Counter[str]()
    silent, well = (container_name(running(context, user)) for _ in range(2))

    def hold(name: str) -> None:
        observed[name] += 1
        held.wait(30)

    def note(name: str) -> None:
        asked[name] += 1

    engine.silent, engine.asked, engine.before["observe"] = {silent}, note, hold
    watch = open_watch(context)
    try:
        for intervals in range(1, PROBES + 3):
            ask(watch)
            eventually(lambda: asked[well] >= intervals)  # noqa: B023 - called at once
        eventually(lambda: observed[silent])
        assert observed == {silent: 1}
    finally:
        held.set()
        watch.close()

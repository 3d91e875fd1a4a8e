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
from worker.containers import ContainerState
from worker.converge import converge
from worker.health import TURNS, HealthWatch, open_watch
from worker.parts import Parts
from worker.sandbox_container import container_name

PROBES = 4


@pytest.fixture
def parts(parts: Parts) -> Parts:
    """A worker that bears with three probes without an answer."""
    settings = parts.settings.model_copy(update={"probe_seconds": 30.0, "health_timeout": 30.0 * PROBES})
    return replace(parts, settings=settings)


@pytest.fixture
def watch(parts: Parts) -> HealthWatch:
    return HealthWatch(parts, probes=PromptExecutor(), silences=PromptExecutor())


def ask(watch: HealthWatch, rounds: int = 1) -> None:
    """Ask everybody so many times."""
    for _ in range(rounds * len(TURNS)):
        watch.look()


def test_server_that_is_silent_for_too_long_is_an_error(
    parts: Parts, user: Person, engine: FakeEngine, watch: HealthWatch
) -> None:
    silent, well = running(parts, user), running(parts, user)
    engine.silent = {container_name(silent)}
    ask(watch, PROBES - 1)
    assert row(parts, Sandbox, silent).status == Status.RUNNING
    ask(watch)
    found = row(parts, Sandbox, silent)
    assert (found.status, found.reason) == (Status.ERROR, Reason.HEALTH_TIMEOUT)
    assert "no answer from the agent server in 120 s" in (found.detail or "")
    assert "the last line" in (found.detail or "")
    assert_at_rest(found)
    assert engine.containers[container_name(silent)].state == ContainerState.EXITED
    assert container_name(silent) in engine.volumes
    assert row(parts, Sandbox, well).status == Status.RUNNING
    engine.silent.clear()
    wish(parts, silent, Desired.RUNNING)
    converge(parts, silent)
    assert row(parts, Sandbox, silent).status == Status.RUNNING


def test_server_that_answers_now_and_then_is_left_alone(
    parts: Parts, user: Person, engine: FakeEngine, watch: HealthWatch
) -> None:
    sandbox_id = running(parts, user)
    for _ in range(3):
        engine.silent = {container_name(sandbox_id)}
        ask(watch, PROBES - 1)
        engine.silent.clear()
        ask(watch)
    assert row(parts, Sandbox, sandbox_id).status == Status.RUNNING


def test_server_that_answers_at_the_last_moment_is_left_alone(
    parts: Parts, user: Person, engine: FakeEngine, watch: HealthWatch
) -> None:
    sandbox_id = running(parts, user)
    engine.silent = {container_name(sandbox_id)}
    ask(watch, PROBES - 1)
    engine.before["observe"] = lambda _name: engine.silent.clear()
    ask(watch)
    found = row(parts, Sandbox, sandbox_id)
    assert found.status == Status.RUNNING
    assert_at_rest(found)


def test_silences_before_and_after_a_boot_do_not_add_up(
    parts: Parts, user: Person, engine: FakeEngine, watch: HealthWatch
) -> None:
    sandbox_id = running(parts, user)
    for _ in range(2):
        engine.silent = {container_name(sandbox_id)}
        ask(watch, PROBES - 1)
        engine.silent.clear()
        for desired in (Desired.PAUSED, Desired.RUNNING):
            wish(parts, sandbox_id, desired)
            converge(parts, sandbox_id)
    assert row(parts, Sandbox, sandbox_id).status == Status.RUNNING


def test_wish_for_a_silent_sandbox_is_not_cut_short(
    parts: Parts, user: Person, engine: FakeEngine, watch: HealthWatch
) -> None:
    """Resumed at the last moment, it is given the time that a resume is given."""
    sandbox_id = running(parts, user)
    engine.silent = {container_name(sandbox_id)}
    ask(watch, PROBES - 1)

    def resume(_name: str) -> None:
        engine.before.clear()
        wish(parts, sandbox_id, Desired.RUNNING)

    engine.before["observe"] = resume
    ask(watch)
    found = row(parts, Sandbox, sandbox_id)
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
    parts: Parts, user: Person, watch: HealthWatch, engine: FakeEngine, columns: dict[str, object]
) -> None:
    make_node(parts.database, "node-b")
    asked: list[str] = []
    sandbox_id = running(parts, user)
    engine.asked = asked.append
    ask(watch)
    assert len(asked) == 1
    change(parts, Sandbox, sandbox_id, **columns)
    ask(watch, PROBES)
    assert len(asked) == 1


def test_stranger_at_the_address_is_told_of_at_once(
    parts: Parts, user: Person, engine: FakeEngine, watch: HealthWatch
) -> None:
    sandbox_id = running(parts, user)
    engine.containers[container_name(sandbox_id)].files = {"/": b'{"session_api_keys": ["another"]}'}
    ask(watch)
    deliver(parts)
    assert row(parts, Sandbox, sandbox_id).reason == Reason.WRONG_SERVER


def test_row_that_can_not_be_asked_harms_no_other(parts: Parts, user: Person, watch: HealthWatch) -> None:
    defective = make_sandbox(parts.database, user, spec_id=IMAGE, id="a" + "0" * 31, session_key="damaged")
    gone = make_sandbox(parts.database, user, spec_id=IMAGE, id="a" + "1" * 31)
    ask(watch, PROBES)
    assert row(parts, Sandbox, defective.id).status == Status.RUNNING
    assert row(parts, Sandbox, gone.id).reason == Reason.CONTAINER_MISSING


def test_server_that_holds_a_probe_delays_no_other(parts: Parts, user: Person, engine: FakeEngine) -> None:
    """It is asked once for as long as it does not answer, and no round waits for it."""
    held, asked = threading.Event(), Counter[str]()
    stuck, well = (container_name(running(parts, user)) for _ in range(2))

    def hold(name: str) -> None:
        asked[name] += 1
        if name == stuck:
            held.wait(30)

    engine.asked = hold
    watch = open_watch(parts)
    try:
        for rounds in range(1, 4):
            ask(watch)
            eventually(lambda: asked[well] >= rounds)  # noqa: B023 - called at once
        assert asked[stuck] == 1
    finally:
        held.set()
        watch.close()


def test_engine_that_stands_still_delays_no_probe(parts: Parts, user: Person, engine: FakeEngine) -> None:
    """What follows from a silence needs the engine: it is done once at a time, and apart."""
    held, observed, asked = threading.Event(), Counter[str](), Counter[str]()
    silent, well = (container_name(running(parts, user)) for _ in range(2))

    def hold(name: str) -> None:
        observed[name] += 1
        held.wait(30)

    def note(name: str) -> None:
        asked[name] += 1

    engine.silent, engine.asked, engine.before["observe"] = {silent}, note, hold
    watch = open_watch(parts)
    try:
        for rounds in range(1, PROBES + 3):
            ask(watch)
            eventually(lambda: asked[well] >= rounds)  # noqa: B023 - called at once
        eventually(lambda: observed[silent])
        assert observed == {silent: 1}
    finally:
        held.set()
        watch.close()

"""Containers that the engine neither pauses nor removes: the resync continues with the others, in a bounded time."""

from datetime import timedelta

import pytest

from shared.states import Status
from tests.factories import ApiUser, make_sandbox
from tests.fakes.engine import FakeEngine
from tests.worker.engine.contents import put, sandbox_without_row
from tests.worker.loops.test_quarantine import pass_time, put_unknown_containers
from tests.worker.scenarios import warm
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState, EngineError, EngineFailing, EngineRefused, EngineUnavailable
from worker.loops.resync import resync
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile

ERRORS = [EngineRefused, EngineFailing, EngineUnavailable]


def put_deleted(context: WorkerContext, engine: FakeEngine, user: ApiUser, digits: str) -> list[str]:
    """Containers whose sandboxes are deleted."""
    ids = (digit * 32 for digit in digits)
    return [put(engine, make_sandbox(context.database, user, id=each, status=Status.DELETED)) for each in ids]


def stick(engine: FakeEngine, *names: str, error: type[EngineError] = EngineUnavailable) -> None:
    """Let pauses and removals of these containers fail."""

    def hang(name: str) -> None:
        if name in names:
            raise error("ReadTimeout")

    engine.before = {"pause": hang, "remove": hang}


def calls(engine: FakeEngine, verb: str) -> list[str]:
    """The containers of the calls since the last question, in order."""
    found = [name for each, name in engine.calls if each == verb]
    engine.calls.clear()
    return found


@pytest.mark.parametrize("error", ERRORS)
def test_removal_of_a_late_container_delays_nothing(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, error: type[EngineError]
) -> None:
    stuck, *_ = put_deleted(context, engine, user, "01")
    unknown = put(engine, sandbox_without_row(user, "f"))
    stick(engine, stuck, error=error)
    resync(context)
    assert set(engine.containers) == {stuck, unknown}
    assert engine.containers[unknown].state == ContainerState.PAUSED


def test_round_ends_after_two_calls_without_a_response(
    context: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    names = put_deleted(context, engine, user, "0123")
    stick(engine, *names)
    resync(context)
    assert calls(engine, "remove") == names[:2]


def test_engine_outage_ends_the_round(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    put_deleted(context, engine, user, "cdef")
    put_unknown_containers(engine, user, 4)
    engine.before["remove"] = lambda _name: setattr(engine, "down", True)
    resync(context)
    assert [verb for verb, _ in engine.calls if verb in ("pause", "remove")] == ["remove"] * 2 + ["pause"] * 2


def test_removals_of_stuck_containers_take_turns(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    first, second, third, fourth, healthy = put_deleted(context, engine, user, "01234")
    stick(engine, first, second, third, fourth)
    for turn in ([first, second], [third, fourth], [healthy, first, second]):
        resync(context)
        assert calls(engine, "remove") == turn
    assert healthy not in engine.containers


def test_removals_from_the_quarantine_take_turns(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    stuck = put_unknown_containers(engine, user, 3)
    stick(engine, *stuck[:2])
    resync(context)
    pass_time(context, timedelta(hours=1))
    for _ in range(2):
        resync(context)
    assert list(engine.containers) == stuck[:2]


def test_container_is_removed_once_the_engine_can(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    [stuck] = put_deleted(context, engine, user, "0")
    stick(engine, stuck)
    resync(context)
    engine.before.clear()
    resync(context)
    assert engine.containers == {}
    resync(context)
    assert not context.failed_at


@pytest.mark.parametrize("error", ERRORS)
def test_failed_image_lookup_delays_nothing(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, error: type[EngineError]
) -> None:
    def fail(_name: str) -> None:
        raise error("status 500")

    warm_id = warm(context)
    reconcile(context, warm_id)
    [late] = put_deleted(context, engine, user, "0")
    unknown = put(engine, sandbox_without_row(user, "f"))
    engine.before["find_image"] = fail
    resync(context)
    assert late not in engine.containers
    assert engine.containers[unknown].state == ContainerState.PAUSED
    assert engine.containers[container_name(warm_id)].state == ContainerState.RUNNING

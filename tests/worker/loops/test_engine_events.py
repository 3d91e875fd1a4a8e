"""Engine events: each triggers a status check of its sandbox, and none is trusted."""

from collections.abc import Iterator
from functools import partial

import pytest

from shared.models import Sandbox
from shared.states import Status
from tests.factories import ApiUser, make_sandbox
from tests.fakes.engine import FakeEngine
from tests.rows import all_rows
from tests.waiting import eventually
from tests.worker.engine.contents import put
from tests.worker.scenarios import assert_at_rest, deliver, row, running
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState, EngineError, EngineFailing, EngineRefused, EngineUnavailable
from worker.loops.engine_events import follow_events
from worker.loops.periodic import PeriodicTask
from worker.sandboxes.container_spec import container_name


class EventEngine(FakeEngine):
    """Engine that reports changes of the containers in `changed`, and then becomes unavailable."""

    def __init__(self) -> None:
        super().__init__()
        self.changed: list[str] = []

    def follow(self, installation: str) -> Iterator[str]:
        super().follow(installation)
        return self._notify()

    def _notify(self) -> Iterator[str]:
        yield from self.changed
        raise EngineUnavailable("ConnectionError")


@pytest.fixture
def engine() -> EventEngine:
    return EventEngine()


def follow(context: WorkerContext) -> None:
    with pytest.raises(EngineUnavailable):
        follow_events(context)


def test_event_triggers_a_status_check(context: WorkerContext, user: ApiUser, engine: EventEngine) -> None:
    sandbox_id = running(context, user)
    engine.changed = [container_name(sandbox_id)]
    follow(context)
    assert row(context, Sandbox, sandbox_id).due_at is not None
    deliver(context)
    found = row(context, Sandbox, sandbox_id)
    assert found.status == Status.RUNNING
    assert_at_rest(found)


@pytest.mark.parametrize("error", [EngineRefused, EngineFailing])
def test_container_that_can_not_be_removed_does_not_end_the_events(
    context: WorkerContext, user: ApiUser, engine: EventEngine, error: type[EngineError]
) -> None:
    """Docker answers 500 while a file system of the container is in use."""

    def refuse(name: str) -> None:
        if name == stuck:
            raise error("not this one")

    sandbox_id = running(context, user)
    deleted = [make_sandbox(context.database, user, id=digit * 32, status=Status.DELETED) for digit in "12"]
    [stuck, other] = [put(engine, sandbox) for sandbox in deleted]
    engine.before["remove"] = refuse
    engine.changed = [container_name(sandbox_id)]
    follow(context)
    assert (stuck in engine.containers, other in engine.containers) == (True, False)
    assert row(context, Sandbox, sandbox_id).due_at is not None


@pytest.mark.parametrize("verb", ["list_containers", "remove"])
def test_engine_that_is_slow_to_list_or_to_remove_does_not_end_the_events(
    context: WorkerContext, user: ApiUser, engine: EventEngine, verb: str
) -> None:
    def time_out(_name: str) -> None:
        raise EngineUnavailable("ReadTimeout")

    sandbox_id = running(context, user)
    put(engine, make_sandbox(context.database, user, status=Status.DELETED))
    engine.before[verb] = time_out
    engine.changed = [container_name(sandbox_id)]
    follow(context)
    assert row(context, Sandbox, sandbox_id).due_at is not None


def test_subscription_begins_before_the_resync(context: WorkerContext, engine: EventEngine) -> None:
    follow(context)
    verbs = [verb for verb, _ in engine.calls]
    assert verbs.index("follow") < verbs.index("list_containers")


def test_change_without_a_subscription_is_found(context: WorkerContext, user: ApiUser, engine: EventEngine) -> None:
    sandbox_id = running(context, user)
    engine.containers[container_name(sandbox_id)].state = ContainerState.EXITED
    follow(context)
    deliver(context)
    assert row(context, Sandbox, sandbox_id).status == Status.ERROR


def test_event_of_a_sandbox_on_another_node_is_ignored(
    context: WorkerContext, user: ApiUser, engine: EventEngine
) -> None:
    """No worker of this node would run the check, and the other node's engine has no such change."""
    moved = make_sandbox(context.database, user, node_id="node-b")
    engine.changed = [container_name(moved.id)]
    follow(context)
    assert row(context, Sandbox, moved.id).due_at is None


def test_event_of_an_unknown_container_is_ignored(context: WorkerContext, user: ApiUser, engine: EventEngine) -> None:
    running(context, user)
    before, verbs = all_rows(context.database), engine.verbs()
    engine.changed = [container_name("0" * 32), "something-else"]
    follow(context)
    deliver(context)
    assert all_rows(context.database) == before
    assert engine.verbs() == [*verbs, "follow"]


def test_unavailable_engine_is_logged_and_not_compared(
    context: WorkerContext, user: ApiUser, engine: EventEngine, caplog: pytest.LogCaptureFixture
) -> None:
    running(context, user)
    before = all_rows(context.database)
    engine.calls.clear()
    engine.down = True
    task = PeriodicTask("events", 60, partial(follow_events, context))
    task.start()
    eventually(lambda: "task_failed" in caplog.text)
    task.stop()
    [line] = [vars(record)["msg"] for record in caplog.records if "task_failed" in str(record.msg)]
    assert (line["task"], line["error"]) == ("events", "EngineUnavailable")
    assert engine.calls == [("follow", "")]
    assert all_rows(context.database) == before

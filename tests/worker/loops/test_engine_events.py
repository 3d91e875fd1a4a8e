"""Engine events: each has its sandbox checked against the engine, and none is believed."""

from collections.abc import Iterator
from functools import partial

import pytest

from shared.models import Sandbox
from shared.states import Status
from tests.factories import Person, make_sandbox
from tests.fakes.engine import FakeEngine
from tests.rows import all_rows
from tests.waiting import eventually
from tests.worker.scenes import assert_at_rest, deliver, row, running
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState, EngineUnavailable
from worker.loops.engine_events import follow_events
from worker.loops.periodic import PeriodicTask
from worker.sandboxes.container_spec import container_name


class TellingEngine(FakeEngine):
    """An engine that tells of these containers, and goes away then."""

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
def engine() -> TellingEngine:
    return TellingEngine()


def follow(context: WorkerContext) -> None:
    with pytest.raises(EngineUnavailable):
        follow_events(context)


def test_change_has_its_sandbox_looked_at(context: WorkerContext, user: Person, engine: TellingEngine) -> None:
    sandbox_id = running(context, user)
    engine.changed = [container_name(sandbox_id)]
    follow(context)
    assert row(context, Sandbox, sandbox_id).due_at is not None
    deliver(context)
    found = row(context, Sandbox, sandbox_id)
    assert found.status == Status.RUNNING
    assert_at_rest(found)


def test_nothing_is_missed_between_looking_and_following(context: WorkerContext, engine: TellingEngine) -> None:
    follow(context)
    verbs = [verb for verb, _ in engine.calls]
    assert verbs.index("follow") < verbs.index("list_containers")


def test_change_while_nobody_followed_is_found(context: WorkerContext, user: Person, engine: TellingEngine) -> None:
    sandbox_id = running(context, user)
    engine.containers[container_name(sandbox_id)].state = ContainerState.EXITED
    follow(context)
    deliver(context)
    assert row(context, Sandbox, sandbox_id).status == Status.ERROR


def test_event_of_a_sandbox_that_lives_elsewhere_by_now_is_let_pass(
    context: WorkerContext, user: Person, engine: TellingEngine
) -> None:
    """The look that it asked for would be taken by nobody here, and the other node's engine knows nothing of it."""
    moved = make_sandbox(context.database, user, node_id="node-b")
    engine.changed = [container_name(moved.id)]
    follow(context)
    assert row(context, Sandbox, moved.id).due_at is None


def test_event_of_an_unknown_container_changes_nothing(
    context: WorkerContext, user: Person, engine: TellingEngine
) -> None:
    running(context, user)
    before, verbs = all_rows(context.database), engine.verbs()
    engine.changed = [container_name("0" * 32), "something-else"]
    follow(context)
    deliver(context)
    assert all_rows(context.database) == before
    assert engine.verbs() == [*verbs, "follow"]


def test_engine_that_is_away_is_logged_and_compared_with_nothing(
    context: WorkerContext, user: Person, engine: TellingEngine, caplog: pytest.LogCaptureFixture
) -> None:
    running(context, user)
    before = all_rows(context.database)
    engine.calls.clear()
    engine.down = True
    routine = PeriodicTask("events", 60, partial(follow_events, context))
    routine.start()
    eventually(lambda: "routine_failed" in caplog.text)
    routine.stop()
    [line] = [vars(record)["msg"] for record in caplog.records if "routine_failed" in str(record.msg)]
    assert (line["routine"], line["error"]) == ("events", "EngineUnavailable")
    assert engine.calls == [("follow", "")]
    assert all_rows(context.database) == before

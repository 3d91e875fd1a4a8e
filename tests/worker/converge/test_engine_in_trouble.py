"""An engine that answers with errors of its own (5xx), or refuses (4xx), while a desired state is to be reached."""

from collections.abc import Sequence
from datetime import timedelta

import pytest
import time_machine

from shared.clock import now
from shared.models import Sandbox
from shared.states import Desired, Reason, Status
from tests.factories import Person
from tests.fakes.engine import FakeEngine
from tests.waiting import eventually
from tests.worker.converge.sandboxes import assert_settled, history, mark_due, once, row, running, start, wish
from tests.worker.scenes import change
from worker.containers import ContainerState
from worker.converge import converge
from worker.parts import Parts
from worker.resync import resync
from worker.sandbox_container import container_name

# More often than anything is tried that is given up at some time.
OFTEN = 12
# By desired state: the calls that fail, and what the sandbox is afterwards.
STATES = [
    (Desired.PAUSED, ["freeze"], Status.PAUSED),
    (Desired.STOPPED, ["unfreeze", "stop"], Status.PAUSED),
    (Desired.DELETED, ["remove"], Status.DELETED),
    (Desired.DELETED, ["stop"], Status.DELETED),
]
READS = ["observe", "list_containers", "list_volumes", "list_unlabelled_volumes"]


def fail(engine: FakeEngine, verbs: Sequence[str]) -> None:
    engine.fail = dict.fromkeys(verbs, 1000)


def try_often(parts: Parts, sandbox_id: str) -> None:
    """Let time pass: the row is taken up again and again, and the engine is compared with the store."""
    for _ in range(OFTEN):
        assert row(parts, sandbox_id).due_at is not None
        converge(parts, sandbox_id)
        resync_if_possible(parts)


def resync_if_possible(parts: Parts) -> None:
    assert isinstance(parts.engine, FakeEngine)
    if "list_containers" not in parts.engine.fail:
        resync(parts)


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize(("desired", "verbs", "status"), STATES)
def test_desired_state_stands_until_it_is_reached(
    parts: Parts, user: Person, engine: FakeEngine, desired: Desired, verbs: list[str], status: Status, reads: bool
) -> None:
    sandbox_id = running(parts, user)
    fail(engine, READS if reads else verbs)
    wish(parts, sandbox_id, desired)
    try_often(parts, sandbox_id)
    found = row(parts, sandbox_id)
    assert found.desired == desired
    assert found.reason == "engine_error"
    assert "status 500" in (found.detail or "")
    engine.fail = {}
    converge(parts, sandbox_id)
    found = row(parts, sandbox_id)
    assert (found.status, found.reason, found.detail) == (status, None, None)
    assert not {"ERROR", "STARTING"} & set(history(parts, sandbox_id)[2:])
    assert_settled(parts, sandbox_id)


@pytest.mark.parametrize("verb", ["unfreeze", "observe"])
def test_resume_stands_until_it_is_reached(parts: Parts, user: Person, engine: FakeEngine, verb: str) -> None:
    sandbox_id = running(parts, user)
    wish(parts, sandbox_id, Desired.PAUSED)
    converge(parts, sandbox_id)
    fail(engine, [verb])
    wish(parts, sandbox_id, Desired.RUNNING)
    try_often(parts, sandbox_id)
    assert (row(parts, sandbox_id).status, row(parts, sandbox_id).reason) == (Status.PAUSED, "engine_error")
    engine.fail = {}
    converge(parts, sandbox_id)
    assert history(parts, sandbox_id) == ["STARTING", "RUNNING", "PAUSED", "RUNNING"]


@pytest.mark.parametrize("verb", ["create", "put_file", "start", "observe"])
def test_start_waits_for_the_engine(parts: Parts, user: Person, engine: FakeEngine, verb: str) -> None:
    sandbox_id = start(parts, user)
    fail(engine, [verb])
    try_often(parts, sandbox_id)
    assert (row(parts, sandbox_id).status, row(parts, sandbox_id).reason) == (Status.STARTING, "engine_error")
    engine.fail = {}
    converge(parts, sandbox_id)
    assert (row(parts, sandbox_id).status, row(parts, sandbox_id).reason) == (Status.RUNNING, None)
    assert history(parts, sandbox_id) == ["STARTING", "RUNNING"]


def test_newer_desired_state_takes_the_place_of_one_that_waits(parts: Parts, user: Person, engine: FakeEngine) -> None:
    sandbox_id = running(parts, user)
    fail(engine, ["freeze"])
    wish(parts, sandbox_id, Desired.PAUSED)
    try_often(parts, sandbox_id)
    wish(parts, sandbox_id, Desired.RUNNING)
    converge(parts, sandbox_id)
    assert (row(parts, sandbox_id).status, row(parts, sandbox_id).reason) == (Status.RUNNING, None)
    assert history(parts, sandbox_id) == ["STARTING", "RUNNING"]


@pytest.mark.parametrize("state", [ContainerState.FROZEN, ContainerState.RUNNING])
def test_change_made_outside_is_not_taken_for_a_failure(
    parts: Parts, user: Person, engine: FakeEngine, state: ContainerState
) -> None:
    sandbox_id = running(parts, user)
    engine.containers[container_name(sandbox_id)].state = state
    fail(engine, READS)
    mark_due(parts, sandbox_id)
    try_often(parts, sandbox_id)
    assert (row(parts, sandbox_id).status, row(parts, sandbox_id).reason) == (Status.RUNNING, None)


def test_lost_node_stays_the_reason(parts: Parts, user: Person, engine: FakeEngine) -> None:
    """It is what lets another node take over."""
    sandbox_id = running(parts, user)
    change(parts, Sandbox, sandbox_id, status=Status.ERROR, reason=Reason.NODE_LOST)
    engine.down = True
    wish(parts, sandbox_id, Desired.RUNNING)
    converge(parts, sandbox_id)
    assert (row(parts, sandbox_id).status, row(parts, sandbox_id).reason) == (Status.ERROR, "node_lost")


def test_retries_come_after_longer_and_longer_pauses(parts: Parts, user: Person, engine: FakeEngine) -> None:
    sandbox_id = running(parts, user)
    fail(engine, ["freeze"])
    wish(parts, sandbox_id, Desired.PAUSED)
    pauses = []
    with time_machine.travel(now(), tick=False):
        for _ in range(6):
            converge(parts, sandbox_id)
            due_at = row(parts, sandbox_id).due_at
            assert due_at is not None
            pauses.append((due_at - now()) / timedelta(seconds=1))
    assert pauses == [0.5, 1, 2, 4, 4, 4]


@pytest.mark.parametrize(("desired", "verb"), [(Desired.PAUSED, "freeze"), (Desired.STOPPED, "stop")])
def test_pause_that_the_engine_refuses_is_tried_on(
    parts: Parts, user: Person, engine: FakeEngine, desired: Desired, verb: str
) -> None:
    sandbox_id = running(parts, user)
    engine.refuse = {verb: 1000}
    wish(parts, sandbox_id, desired)
    try_often(parts, sandbox_id)
    found = row(parts, sandbox_id)
    assert (found.status, found.reason) == (Status.RUNNING, "engine_error")
    assert f"{verb} refused" in (found.detail or "")
    engine.refuse = {}
    converge(parts, sandbox_id)
    assert history(parts, sandbox_id) == ["STARTING", "RUNNING", "PAUSED"]


def test_refusal_after_a_long_trouble_is_not_the_last_one(parts: Parts, user: Person, engine: FakeEngine) -> None:
    sandbox_id = start(parts, user)
    fail(engine, ["create"])
    try_often(parts, sandbox_id)
    engine.fail, engine.refuse = {}, {"create": 1}
    converge(parts, sandbox_id)
    converge(parts, sandbox_id)
    assert row(parts, sandbox_id).status == Status.RUNNING


def test_defect_of_ours_does_not_end_a_pause(parts: Parts, user: Person, engine: FakeEngine) -> None:
    sandbox_id = running(parts, user)

    def fail_by_a_defect(_name: str) -> None:
        raise KeyError("a defect")

    engine.before["freeze"] = fail_by_a_defect
    wish(parts, sandbox_id, Desired.PAUSED)
    try_often(parts, sandbox_id)
    assert (row(parts, sandbox_id).status, row(parts, sandbox_id).reason) == (Status.RUNNING, "internal_error")
    engine.before.clear()
    converge(parts, sandbox_id)
    assert history(parts, sandbox_id) == ["STARTING", "RUNNING", "PAUSED"]


def test_desired_state_that_changes_during_a_pull_ends_the_wait(
    parts: Parts, user: Person, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.watched_work.WATCH_SECONDS", 0.01)
    sandbox_id = start(parts, user)
    engine.images.clear()

    def delete_and_wait() -> None:
        wish(parts, sandbox_id, Desired.DELETED)
        eventually(lambda: row(parts, sandbox_id).status == Status.DELETED)

    once(engine, "pull", delete_and_wait)
    converge(parts, sandbox_id)
    assert row(parts, sandbox_id).status == Status.DELETED

"""Logs are read for pending requests, without a lease, a few at a time."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
import time_machine
from sqlmodel import select

from shared.clock import after
from shared.container_logs import kept_logs
from shared.container_logs.kept_logs import NO_CONTAINER
from shared.models import Sandbox, SandboxLog
from shared.queue.jobs import ReadLog
from shared.states import Desired
from tests.doubles import RecordingPublisher
from tests.factories import NODE_ID, ApiUser, make_user
from tests.fakes.container import printed
from tests.fakes.engine import FakeEngine
from tests.worker.sandboxes.printed_logs import container_of, logs_of, reads
from tests.worker.scenarios import (
    claim,
    delete,
    deliver,
    row,
    running,
    set_desired,
    start,
    warm,
)
from worker.context import WorkerContext
from worker.sandboxes import container_logs
from worker.sandboxes.container_logs import read_live
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile


def test_log_of_a_running_container_is_read(
    context: WorkerContext,
    publisher: RecordingPublisher,
    engine: FakeEngine,
    user: ApiUser,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(container_logs, "FRESH_SECONDS", 60.0)
    sandbox_id = running(context, user)
    publisher.publish(ReadLog(sandbox_id, NODE_ID))
    deliver(context)
    assert logs_of(context, sandbox_id) == [(["the last line"], None)]
    read_live(context, sandbox_id)
    assert reads(engine) == 1, "the reading is fresh"


def test_readings_follow_the_log(
    context: WorkerContext, engine: FakeEngine, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_logs, "FRESH_SECONDS", 0.0)
    sandbox_id = running(context, user)
    read_live(context, sandbox_id)
    container_of(engine, sandbox_id).log.append("and one more")
    read_live(context, sandbox_id)
    assert logs_of(context, sandbox_id) == [(["the last line", "and one more"], None)]
    set_desired(context, sandbox_id, Desired.STOPPED)
    reconcile(context, sandbox_id)
    read_live(context, sandbox_id)
    assert logs_of(context, sandbox_id)[0][1] == "exited"
    delete(context, sandbox_id)
    read_live(context, sandbox_id)
    assert logs_of(context, sandbox_id) == [(["the last line", "and one more"], "removed")]


def test_log_is_read_again_after_the_clock_was_set_back(
    context: WorkerContext, engine: FakeEngine, user: ApiUser
) -> None:
    sandbox_id = running(context, user)
    with time_machine.travel(after(3600)):
        read_live(context, sandbox_id)
    container_of(engine, sandbox_id).log.append("and one more")
    read_live(context, sandbox_id)
    assert logs_of(context, sandbox_id) == [(["the last line", "and one more"], None)]


def test_reading_without_a_container_is_recorded(context: WorkerContext, engine: FakeEngine, user: ApiUser) -> None:
    sandbox_id = start(context, user)
    read_live(context, sandbox_id)
    with context.database.reading() as session:
        assert session.exec(select(SandboxLog.container_id)).all() == [NO_CONTAINER]
        assert kept_logs.find_last_reading(session, sandbox_id) is not None
    assert reads(engine) == 0


def test_log_of_a_claimed_sandbox_is_not_read_before_its_init(
    context: WorkerContext, engine: FakeEngine, user: ApiUser
) -> None:
    """After a restore of the store, the container may be another user's (decision 47)."""
    reconcile(context, warm(context))
    sandbox_id = claim(context, user)
    read_live(context, sandbox_id)
    assert (reads(engine), logs_of(context, sandbox_id)) == (0, [])
    reconcile(context, sandbox_id)
    assert row(context, Sandbox, sandbox_id).ready_at is not None


@pytest.mark.parametrize("verb", ["observe", "read_log"])
def test_engine_in_trouble_ends_the_reading_only(
    context: WorkerContext, engine: FakeEngine, user: ApiUser, verb: str
) -> None:
    sandbox_id = running(context, user)
    engine.fail[verb] = 1
    read_live(context, sandbox_id)
    assert logs_of(context, sandbox_id) == []
    read_live(context, sandbox_id)
    assert len(logs_of(context, sandbox_id)) == 1, "its slot is free again"


def test_sandbox_of_another_node_is_not_read(context: WorkerContext, engine: FakeEngine, user: ApiUser) -> None:
    sandbox_id = running(context, user)
    other = replace(context, settings=context.settings.model_copy(update={"node": "node-b"}))
    engine.calls.clear()
    for each in (sandbox_id, "0" * 32):
        read_live(other, each)
    assert engine.calls == []


def read_while_reading(context: WorkerContext, engine: FakeEngine, sandbox_ids: Iterable[str]) -> None:
    """Begin a reading of each sandbox while the engine has not answered those before it."""
    remaining = iter(sandbox_ids)

    def read_next(_name: str) -> None:
        for sandbox_id in remaining:
            read_live(context, sandbox_id)

    engine.before["read_log"] = read_next
    read_next("")
    del engine.before["read_log"]


def names_read(engine: FakeEngine) -> set[str]:
    return {name for verb, name in engine.calls if verb == "read_log"}


def test_owner_with_many_readings_leaves_places_for_others(
    context: WorkerContext, engine: FakeEngine, user: ApiUser
) -> None:
    mine, theirs = (
        [running(context, user) for _ in range(8)],
        running(context, make_user(context.database, "other-owner")),
    )
    read_while_reading(context, engine, [*mine, theirs])
    assert names_read(engine) == {container_name(each) for each in (*mine[:4], theirs)}


def test_reading_without_a_place_is_made_later(
    context: WorkerContext, publisher: RecordingPublisher, engine: FakeEngine, user: ApiUser
) -> None:
    mine = [running(context, user) for _ in range(6)]
    publisher.jobs.clear()
    read_while_reading(context, engine, mine)
    deliver(context)
    assert names_read(engine) == {container_name(each) for each in mine}


def test_log_is_read_by_one_job_at_a_time(
    context: WorkerContext,
    publisher: RecordingPublisher,
    engine: FakeEngine,
    user: ApiUser,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(container_logs, "FRESH_SECONDS", 60.0)
    sandbox_id = running(context, user)
    publisher.jobs.clear()
    read_while_reading(context, engine, [sandbox_id] * 8)
    assert reads(engine) == 1
    deliver(context)
    assert reads(engine) == 1, "the others use its result"


def test_detail_of_a_failure_is_short(
    context: WorkerContext, engine: FakeEngine, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "read_log", lambda _name: printed(*["x" * 10_000] * 3, "the end"))
    engine.at_boot = 3
    sandbox_id = start(context, user)
    reconcile(context, sandbox_id)
    detail = str(row(context, Sandbox, sandbox_id).detail)
    assert detail.endswith("\nthe end")
    assert len(detail) < 8_200

"""Unknown containers are paused and kept; a few are removed after a while, many only with an operator's approval."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlmodel import select

from shared.models import Sandbox, UnknownContainer
from shared.sandboxes import quarantine
from shared.states import Reason, Status
from tests.factories import NODE_ID, ApiUser, make_sandbox
from tests.fakes.engine import IMAGE, FakeEngine
from tests.worker.engine.contents import put, sandbox_without_row
from tests.worker.scenarios import another, deliver, row
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState, EngineError, EngineFailing, EngineRefused, EngineUnavailable
from worker.loops.quarantine import MAX_REMOVALS
from worker.loops.resync import resync

HOUR = timedelta(hours=1)
FEW = quarantine.MAX_UNCONFIRMED
DIGITS = "0123456789abcdef"


def put_unknown_containers(engine: FakeEngine, user: ApiUser, number: int) -> list[str]:
    return [put(engine, sandbox_without_row(user, digit)) for digit in DIGITS[:number]]


def quarantined(context: WorkerContext) -> dict[str, UnknownContainer]:
    with context.database.reading() as session:
        return {found.name: found for found in quarantine.find(session)}


def pass_time(context: WorkerContext, by: timedelta) -> None:
    with context.database.transaction() as session:
        for found in session.exec(select(UnknownContainer)):
            found.first_seen_at -= by


def approve(context: WorkerContext, *names: str) -> None:
    with context.database.transaction() as session:
        quarantine.approve(session, NODE_ID, names)


def test_unknown_container_is_paused_and_kept_for_an_hour(
    context: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    name = put(engine, sandbox_without_row(user))
    resync(context)
    assert engine.containers[name].state == ContainerState.PAUSED
    first_seen = quarantined(context)[name].first_seen_at
    pass_time(context, HOUR - timedelta(minutes=1))
    resync(another(context))  # a worker that was started in between reads the same rows
    assert name in engine.containers
    assert first_seen - quarantined(context)[name].first_seen_at == HOUR - timedelta(minutes=1)
    pass_time(context, timedelta(minutes=2))
    resync(context)
    assert (engine.containers, engine.volumes) == ({}, {})
    resync(context)
    assert quarantined(context) == {}


def test_unknown_container_that_is_started_later_is_paused(
    context: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    name = put(engine, sandbox_without_row(user), ContainerState.CREATED)
    resync(context)
    assert engine.containers[name].state == ContainerState.CREATED
    engine.containers[name].state = ContainerState.RUNNING
    resync(context)
    assert engine.containers[name].state == ContainerState.PAUSED


def test_volume_without_a_row_is_quarantined(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    name = put(engine, sandbox_without_row(user), ContainerState.ABSENT)
    for _ in range(2):
        resync(context)
    assert list(engine.volumes) == list(quarantined(context)) == [name]
    pass_time(context, HOUR)
    resync(context)
    assert engine.volumes == {}


def test_containers_of_deleted_sandboxes_are_removed_immediately(
    context: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    for digit in DIGITS:
        put(engine, make_sandbox(context.database, user, id=digit * 32, status=Status.DELETED))
    resync(context)
    assert (engine.containers, engine.volumes) == ({}, {})
    assert quarantined(context) == {}


def test_restored_older_store_loses_no_files(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    names = put_unknown_containers(engine, user, FEW + 1)
    resync(context)
    pass_time(context, 1000 * HOUR)
    for _ in range(3):
        resync(context)
    assert sorted(engine.containers) == sorted(engine.volumes) == names
    assert {found.one_of_many for found in quarantined(context).values()} == {True}


def test_containers_without_approval_are_kept(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    names = put_unknown_containers(engine, user, FEW + 2)
    resync(context)
    pass_time(context, 1000 * HOUR)
    approve(context, *names[:3])
    for _ in range(3):
        resync(context)
    assert sorted(engine.volumes) == names[3:]


def test_growing_number_of_containers_waits_for_approval(
    context: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    put_unknown_containers(engine, user, FEW)
    resync(context)
    names = put_unknown_containers(engine, user, FEW + 1)
    pass_time(context, HOUR - timedelta(seconds=1))
    resync(context)
    pass_time(context, HOUR)
    resync(context)
    assert sorted(engine.volumes) == names


def test_approval_is_executed_immediately_in_batches(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    names = put_unknown_containers(engine, user, MAX_REMOVALS + 2)
    resync(context)
    approve(context, *names)
    resync(context)
    assert len(engine.volumes) == 2
    resync(context)
    assert engine.volumes == {}


def test_sandbox_with_a_restored_row_keeps_its_files(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    unknown = sandbox_without_row(user)
    name = put(engine, unknown)
    resync(context)
    assert list(quarantined(context)) == [name]
    pass_time(context, HOUR)
    make_sandbox(context.database, user, id=unknown.id, spec_id=IMAGE)
    resync(context)
    assert quarantined(context) == {}
    assert list(engine.volumes) == [name]
    deliver(context)
    found = row(context, Sandbox, unknown.id)
    assert (found.status, found.reason) == (Status.PAUSED, Reason.PAUSED_OUTSIDE)


@pytest.mark.parametrize("error", [EngineRefused, EngineFailing, EngineUnavailable])
def test_container_that_can_not_be_paused_or_removed_does_not_delay_others(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, error: type[EngineError]
) -> None:
    def refuse(name: str) -> None:
        if name == first:
            raise error("not this one")

    first, second = put_unknown_containers(engine, user, 2)
    engine.before = {"pause": refuse, "remove": refuse}
    resync(context)
    assert engine.containers[second].state == ContainerState.PAUSED
    pass_time(context, HOUR)
    resync(context)
    assert list(engine.containers) == [first]


def test_duration_of_the_quarantine_is_a_setting(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    short = replace(context, settings=context.settings.model_copy(update={"quarantine_seconds": 0.0}))
    put(engine, sandbox_without_row(user))
    resync(context)
    assert len(engine.volumes) == 1
    resync(short)
    assert engine.volumes == {}


def test_each_node_has_its_own_quarantine(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    with context.database.transaction() as session:
        quarantine.keep(session, "node-b", ["aw-theirs"])
    name = put(engine, sandbox_without_row(user))
    resync(context)
    assert {found.name: found.node_id for found in quarantined(context).values()} == {
        name: NODE_ID,
        "aw-theirs": "node-b",
    }

"""What the store has never heard of is frozen and kept; a few go after a while, many only on an operator's word."""

from dataclasses import replace
from datetime import timedelta

from sqlmodel import select

from shared.models import Sandbox, UnknownContainer
from shared.states import Reason, Status
from shared.store import quarantine
from tests.factories import NODE_ID, Person, make_sandbox
from tests.fakes.engine import IMAGE, FakeEngine
from tests.worker.engine_contents import put, stray
from tests.worker.scenes import another, deliver, row
from worker.containers import ContainerState, EngineRefused
from worker.parts import Parts
from worker.quarantine import MOST_AT_ONCE
from worker.resync import resync

HOUR = timedelta(hours=1)
FEW = quarantine.MOST_UNASKED
DIGITS = "0123456789abcdef"


def put_strays(engine: FakeEngine, user: Person, number: int) -> list[str]:
    return [put(engine, stray(user, digit)) for digit in DIGITS[:number]]


def kept(parts: Parts) -> dict[str, UnknownContainer]:
    with parts.database.reading() as session:
        return {found.name: found for found in quarantine.find(session)}


def pass_time(parts: Parts, by: timedelta) -> None:
    with parts.database.transaction() as session:
        for found in session.exec(select(UnknownContainer)):
            found.first_seen_at -= by


def approve(parts: Parts, *names: str) -> None:
    with parts.database.transaction() as session:
        quarantine.approve(session, NODE_ID, names)


def test_unknown_container_is_frozen_and_kept_for_an_hour(parts: Parts, user: Person, engine: FakeEngine) -> None:
    name = put(engine, stray(user))
    resync(parts)
    assert engine.containers[name].state == ContainerState.FROZEN
    first_seen = kept(parts)[name].first_seen_at
    pass_time(parts, HOUR - timedelta(minutes=1))
    resync(another(parts))  # a worker that was started since knows, too
    assert name in engine.containers
    assert first_seen - kept(parts)[name].first_seen_at == HOUR - timedelta(minutes=1)
    pass_time(parts, timedelta(minutes=2))
    resync(parts)
    assert (engine.containers, engine.volumes) == ({}, {})
    resync(parts)
    assert kept(parts) == {}


def test_unknown_container_that_is_started_later_is_frozen_too(parts: Parts, user: Person, engine: FakeEngine) -> None:
    name = put(engine, stray(user), ContainerState.CREATED)
    resync(parts)
    assert engine.containers[name].state == ContainerState.CREATED
    engine.containers[name].state = ContainerState.RUNNING
    resync(parts)
    assert engine.containers[name].state == ContainerState.FROZEN


def test_volume_that_no_row_explains_is_kept_too(parts: Parts, user: Person, engine: FakeEngine) -> None:
    name = put(engine, stray(user), ContainerState.ABSENT)
    for _ in range(2):
        resync(parts)
    assert list(engine.volumes) == list(kept(parts)) == [name]
    pass_time(parts, HOUR)
    resync(parts)
    assert engine.volumes == {}


def test_what_deleted_sandboxes_have_left_goes_at_once(parts: Parts, user: Person, engine: FakeEngine) -> None:
    for digit in DIGITS:
        put(engine, make_sandbox(parts.database, user, id=digit * 32, status=Status.DELETED))
    resync(parts)
    assert (engine.containers, engine.volumes) == ({}, {})
    assert kept(parts) == {}


def test_store_that_went_back_in_time_costs_nobody_their_files(parts: Parts, user: Person, engine: FakeEngine) -> None:
    names = put_strays(engine, user, FEW + 1)
    resync(parts)
    pass_time(parts, 1000 * HOUR)
    for _ in range(3):
        resync(parts)
    assert sorted(engine.containers) == sorted(engine.volumes) == names
    assert {found.one_of_many for found in kept(parts).values()} == {True}


def test_those_that_an_operator_spares_of_many_stay(parts: Parts, user: Person, engine: FakeEngine) -> None:
    names = put_strays(engine, user, FEW + 2)
    resync(parts)
    pass_time(parts, 1000 * HOUR)
    approve(parts, *names[:3])
    for _ in range(3):
        resync(parts)
    assert sorted(engine.volumes) == names[3:]


def test_few_that_become_many_wait_for_an_operator(parts: Parts, user: Person, engine: FakeEngine) -> None:
    put_strays(engine, user, FEW)
    resync(parts)
    names = put_strays(engine, user, FEW + 1)
    pass_time(parts, HOUR - timedelta(seconds=1))
    resync(parts)
    pass_time(parts, HOUR)
    resync(parts)
    assert sorted(engine.volumes) == names


def test_operator_s_word_is_carried_out_at_once_and_in_parts(parts: Parts, user: Person, engine: FakeEngine) -> None:
    names = put_strays(engine, user, MOST_AT_ONCE + 2)
    resync(parts)
    approve(parts, *names)
    resync(parts)
    assert len(engine.volumes) == 2
    resync(parts)
    assert engine.volumes == {}


def test_sandbox_whose_row_is_back_goes_on_with_its_files(parts: Parts, user: Person, engine: FakeEngine) -> None:
    forgotten = stray(user)
    name = put(engine, forgotten)
    resync(parts)
    assert list(kept(parts)) == [name]
    pass_time(parts, HOUR)
    make_sandbox(parts.database, user, id=forgotten.id, spec_id=IMAGE)
    resync(parts)
    assert kept(parts) == {}
    assert list(engine.volumes) == [name]
    deliver(parts)
    found = row(parts, Sandbox, forgotten.id)
    assert (found.status, found.reason) == (Status.PAUSED, Reason.PAUSED_OUTSIDE)


def test_container_that_can_not_be_frozen_or_removed_holds_up_no_other(
    parts: Parts, user: Person, engine: FakeEngine
) -> None:
    def refuse(name: str) -> None:
        if name == first:
            raise EngineRefused("not this one")

    first, second = put_strays(engine, user, 2)
    engine.before = {"freeze": refuse, "remove": refuse}
    resync(parts)
    assert engine.containers[second].state == ContainerState.FROZEN
    pass_time(parts, HOUR)
    resync(parts)
    assert list(engine.containers) == [first]


def test_length_of_the_quarantine_is_a_setting(parts: Parts, user: Person, engine: FakeEngine) -> None:
    short = replace(parts, settings=parts.settings.model_copy(update={"quarantine_seconds": 0.0}))
    put(engine, stray(user))
    resync(parts)
    assert len(engine.volumes) == 1
    resync(short)
    assert engine.volumes == {}


def test_each_node_has_its_own(parts: Parts, user: Person, engine: FakeEngine) -> None:
    with parts.database.transaction() as session:
        quarantine.keep(session, "node-b", ["aw-theirs"])
    name = put(engine, stray(user))
    resync(parts)
    assert {found.name: found.node_id for found in kept(parts).values()} == {name: NODE_ID, "aw-theirs": "node-b"}

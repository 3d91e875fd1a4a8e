"""A store that went back in time takes a user's sandbox for a spare one, or for idle: its files must stay."""

from datetime import timedelta

import pytest

from shared.clock import now
from shared.deadlines import Act
from shared.models import Sandbox, SandboxSpec
from shared.states import Desired, PauseKind, Reason, Status
from shared.store import quarantine, specs, warm_pool
from shared.warm_pools import OLD
from tests.factories import NODE_ID, Person, make_person
from tests.fakes.engine import IMAGE, FakeEngine
from tests.worker.scenes import (
    INSTALLATION,
    LLM_KEY,
    another,
    ask,
    assert_failed,
    change,
    configure,
    deliver,
    row,
    running,
    server_of,
    store_settings,
    task_of,
    warm,
    wish,
)
from worker.containers import ContainerState
from worker.converge import converge
from worker.deadlines import meet_deadlines
from worker.engine import INSTALLATION_LABEL, OWNER_LABEL
from worker.looks import look
from worker.parts import Parts
from worker.resync import resync
from worker.sandbox_container import container_name
from worker.warm_pool import tend_pools

FROZEN, EXITED = ContainerState.FROZEN, ContainerState.EXITED
CONVERSATION = "c" * 32


@pytest.fixture
def other(parts: Parts) -> Person:
    return make_person(parts.database, "bertha")


@pytest.fixture
def restored(parts: Parts, user: Person, engine: FakeEngine) -> str:
    """A sandbox with a conversation, which waited in the pool when the store was backed up."""
    member = make_member(parts)
    backup = row(parts, Sandbox, member).model_dump()
    assert claim(parts, user) == member
    converge(parts, member)
    assert row(parts, Sandbox, member).status == Status.RUNNING
    server_of(engine, member).add(CONVERSATION)
    change(parts, Sandbox, member, **backup)
    return member


def make_member(parts: Parts) -> str:
    member = warm(parts)
    converge(parts, member)
    assert row(parts, Sandbox, member).status == Status.RUNNING
    return member


def claim(parts: Parts, owner: Person) -> str:
    with parts.database.transaction() as session:
        spec = specs.get_spec(session, IMAGE)
        spec.warm_most = 1
        return warm_pool.obtain(session, parts.vault, owner_id=owner.id, spec=spec, due_at=now()).id


def tend(parts: Parts) -> None:
    """Tend a pool that is to have no members."""
    with parts.database.transaction() as session:
        spec = session.get_one(SandboxSpec, IMAGE)
        spec.warm_target, spec.warm_most = 0, 1
    tend_pools(parts)
    deliver(parts)


def in_quarantine(parts: Parts) -> list[str]:
    with parts.database.reading() as session:
        return [found.name for found in quarantine.find(session, NODE_ID)]


def assert_kept(parts: Parts, engine: FakeEngine, sandbox_id: str, state: ContainerState = FROZEN) -> None:
    """Its row has ended, and its container and its files are in quarantine."""
    name = container_name(sandbox_id)
    resync(parts)
    deliver(parts)
    assert list(engine.volumes) == [name]
    assert engine.containers[name].state == state
    assert CONVERSATION in server_of(engine, sandbox_id).conversations
    assert in_quarantine(parts) == [name]
    found = row(parts, Sandbox, sandbox_id)
    assert (found.status, found.reason) == (Status.DELETED, Reason.ALREADY_USED)


def test_check_takes_it_out_of_the_pool(parts: Parts, engine: FakeEngine, restored: str) -> None:
    look(parts, restored)
    deliver(parts)
    tend(parts)
    assert_kept(parts, engine, restored)


def test_it_is_not_retired_for_its_age(parts: Parts, engine: FakeEngine, restored: str) -> None:
    change(parts, Sandbox, restored, created_at=now() - OLD - timedelta(hours=1))
    tend(parts)
    assert_kept(parts, engine, restored)


@pytest.mark.parametrize("state", [FROZEN, EXITED])
def test_it_is_not_retired_once_it_stands_still(
    parts: Parts, engine: FakeEngine, restored: str, state: ContainerState
) -> None:
    name = container_name(restored)
    engine.freeze(name) if state == FROZEN else engine.stop(name, 1)
    for _ in range(2):
        resync(parts)
        deliver(parts)
        tend(parts)
    assert_kept(parts, engine, restored, state)


def test_one_that_does_not_answer_is_not_retired(parts: Parts, engine: FakeEngine, restored: str) -> None:
    engine.silent.add(container_name(restored))
    tend(parts)
    assert_kept(parts, engine, restored)


def test_one_that_has_started_for_its_owner_since_is_not_retired(
    parts: Parts, engine: FakeEngine, restored: str
) -> None:
    """It was not booted to wait, so it does not know what it is asked."""
    server = server_of(engine, restored)
    server.boot_key, engine.containers[container_name(restored)].files = None, {}
    engine.containers[container_name(restored)].files["config"] = b'{"session_api_keys": ["theirs"]}'
    tend(parts)
    assert_kept(parts, engine, restored)


def test_claim_fails_with_a_reason(parts: Parts, engine: FakeEngine, restored: str, other: Person) -> None:
    configure(parts, other)
    store_settings(parts, other, llm_api_key=LLM_KEY)
    with parts.database.transaction() as session:
        session.get_one(SandboxSpec, IMAGE).warm_most = 1
    task_id = ask(parts, other)
    assert task_of(parts, task_id).sandbox_id == restored
    converge(parts, restored)
    deliver(parts)
    assert_failed(parts, task_id, Reason.SANDBOX_FAILED, Reason.ALREADY_USED)
    assert_kept(parts, engine, restored)


@pytest.mark.parametrize("state", [FROZEN, EXITED])
def test_claim_of_one_that_stands_still_gets_nobody_s_files(
    parts: Parts, engine: FakeEngine, restored: str, other: Person, state: ContainerState
) -> None:
    name = container_name(restored)
    engine.freeze(name) if state == FROZEN else engine.stop(name, 1)
    assert claim(parts, other) == restored
    converge(parts, restored)
    assert_kept(parts, engine, restored, state)


def test_claim_of_a_volume_alone_gets_nobody_s_files(
    parts: Parts, engine: FakeEngine, restored: str, other: Person
) -> None:
    engine.discard(container_name(restored))
    assert claim(parts, other) == restored
    converge(parts, restored)
    resync(parts)
    assert (list(engine.volumes), engine.containers) == ([container_name(restored)], {})
    assert in_quarantine(parts) == [container_name(restored)]


def test_claim_whose_container_is_gone_makes_its_own_in_two_attempts(
    parts: Parts, engine: FakeEngine, user: Person
) -> None:
    member = make_member(parts)
    engine.remove(container_name(member))
    assert claim(parts, user) == member

    def leave_the_volume(name: str) -> None:
        sandbox = row(parts, Sandbox, member)
        engine.volumes[name] = {INSTALLATION_LABEL: INSTALLATION, OWNER_LABEL: str(sandbox.owner_id)}

    engine.before["create"], engine.fail["create"] = leave_the_volume, 1
    for _ in range(2):
        converge(parts, member)
        change(parts, Sandbox, member, due_at=now())
    assert row(parts, Sandbox, member).status == Status.RUNNING


def test_claim_that_is_deleted_at_once_costs_no_files(
    parts: Parts, engine: FakeEngine, restored: str, other: Person
) -> None:
    assert claim(parts, other) == restored
    wish(parts, restored, Desired.DELETED)
    converge(parts, restored)
    assert_kept(parts, engine, restored)


def test_one_that_booted_during_the_backup_is_not_booted_for_the_pool(
    parts: Parts, engine: FakeEngine, restored: str
) -> None:
    columns = {"generation": 2, "observed_generation": 1, "due_at": now(), "ready_at": None}
    change(parts, Sandbox, restored, status=Status.STARTING, **columns)
    engine.stop(container_name(restored), 1)
    converge(parts, restored)
    assert_kept(parts, engine, restored, EXITED)


def test_engine_that_does_not_say_removes_nothing(parts: Parts, engine: FakeEngine, restored: str) -> None:
    engine.silent.add(container_name(restored))
    engine.refuse["has_new_files"] = 1
    tend(parts)
    assert_kept(parts, engine, restored)


def test_restored_store_with_its_row_goes_on_with_its_files(
    parts: Parts, engine: FakeEngine, user: Person, restored: str
) -> None:
    tend(parts)
    assert_kept(parts, engine, restored)
    columns = {"desired": Desired.RUNNING, "status": Status.RUNNING, "reason": None, "owner_id": user.id}
    change(parts, Sandbox, restored, **columns)
    resync(another(parts))
    deliver(parts)
    found = row(parts, Sandbox, restored)
    assert (found.status, found.reason, in_quarantine(parts)) == (Status.PAUSED, Reason.PAUSED_OUTSIDE, [])


@pytest.mark.parametrize("state", [FROZEN, EXITED])
def test_idle_deadline_costs_no_sandbox_that_was_used_since(
    parts: Parts, engine: FakeEngine, user: Person, state: ContainerState
) -> None:
    """The engine knows that it was resumed after the backup, in which it was stopped long ago."""
    sandbox_id = running(parts, user)
    name = container_name(sandbox_id)
    stopped = {"status": Status.PAUSED, "pause_kind": PauseKind.STOPPED, "desired": Desired.STOPPED}
    past = {"settled_at": now() - timedelta(days=2), "last_active_at": now() - timedelta(days=2)}
    passed = {"deadline_at": now() - timedelta(days=1), "deadline_does": Act.DELETE}
    change(parts, Sandbox, sandbox_id, **stopped, **past, **passed)
    if state == EXITED:
        engine.stop(name, 1)
    meet_deadlines(parts)
    deliver(parts)
    resync(parts)
    expected = {FROZEN: ([name], Reason.ALREADY_USED), EXITED: ([], Reason.IDLE_DELETED)}
    assert (list(engine.volumes), row(parts, Sandbox, sandbox_id).reason) == expected[state]
    assert [found.state for found in engine.containers.values()] == [FROZEN] * len(engine.volumes)


@pytest.mark.parametrize("state", [ContainerState.RUNNING, FROZEN, EXITED])
def test_member_that_nobody_has_had_goes_at_once(parts: Parts, engine: FakeEngine, state: ContainerState) -> None:
    name = container_name(make_member(parts))
    if state != ContainerState.RUNNING:
        engine.freeze(name) if state == FROZEN else engine.stop(name, 1)
    tend(parts)
    resync(parts)
    assert (engine.volumes, in_quarantine(parts)) == ({}, [])


def test_member_that_a_worker_told_before_it_died_can_be_deleted(
    parts: Parts, engine: FakeEngine, user: Person
) -> None:
    """Nothing is in it, and it takes the key of the row."""
    member = make_member(parts)
    assert claim(parts, user) == member
    key = parts.vault.decrypt(row(parts, Sandbox, member).session_key)
    server = server_of(engine, member)
    server.is_dormant, server.session_key = False, key
    wish(parts, member, Desired.DELETED)
    converge(parts, member)
    assert (engine.volumes, row(parts, Sandbox, member).reason) == ({}, None)


def test_server_that_knows_no_deferred_init_is_removed(parts: Parts, engine: FakeEngine) -> None:
    member = warm(parts)

    def forget(name: str) -> None:
        engine.containers[name].files.clear()

    engine.before["start"] = forget
    converge(parts, member)
    assert (row(parts, Sandbox, member).reason, engine.volumes) == (Reason.NOT_DORMANT, {})

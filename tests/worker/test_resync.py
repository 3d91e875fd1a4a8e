"""Store against engine: what differs is looked at, what deleted sandboxes have left is removed."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import pytest

from shared.clock import after, now
from shared.jobs import CheckSandbox
from shared.models import Sandbox
from shared.states import Desired, PauseKind, Status
from tests.doubles import PatientExecutor, RecordingPublisher
from tests.factories import NODE_ID, Person, make_node, make_sandbox
from tests.fakes.engine import IMAGE, FakeEngine
from tests.rows import all_rows
from tests.worker.engine_contents import put, stray
from tests.worker.scenes import assert_at_rest, deliver, punctuated, row, running
from worker.containers import ContainerState
from worker.looks import check, look
from worker.parts import Parts
from worker.resync import resync
from worker.sandbox_container import container_name

Ask = Callable[[Parts, str], None]

FROZEN, EXITED, CREATED = ContainerState.FROZEN, ContainerState.EXITED, ContainerState.CREATED
# The containers that a row which wants nothing may have; ERROR before and after it was ever ready.
AS_TOLD: dict[tuple[Status, bool], set[ContainerState]] = {
    (Status.RUNNING, True): {ContainerState.RUNNING},
    (Status.PAUSED, True): {FROZEN},
    (Status.ERROR, True): {FROZEN, EXITED, CREATED, ContainerState.ABSENT, ContainerState.DEAD},
    # Nothing is left of one that never was, not even the volume that each has here.
    (Status.ERROR, False): set(),
    # A wish that is still being carried out, and nobody is at it.
    (Status.STARTING, False): set(),
    (Status.DELETING, True): set(),
}


def quiet_row(parts: Parts, user: Person, status: Status, *, ready: bool = True, **columns: Any) -> Sandbox:
    """A row that wants nothing."""
    columns = {"spec_id": IMAGE, "due_at": None, "ready_at": now() if ready else None, **columns}
    return make_sandbox(parts.database, user, status=status, **columns)


def checked(parts: Parts) -> set[str]:
    """What one comparison has looked at."""
    assert isinstance(parts.publisher, RecordingPublisher)
    assert isinstance(parts.looks, PatientExecutor)
    parts.publisher.jobs.clear()
    parts.looks.waiting.clear()
    resync(parts)
    assert all(isinstance(job, CheckSandbox) and job.node_id == NODE_ID for job in parts.publisher.jobs)
    return {job.subject for job in parts.publisher.jobs} | {args[1] for _, args in parts.looks.waiting}


def cases() -> Iterator[tuple[Status, bool, ContainerState]]:
    for (status, ready), state in product(AS_TOLD, ContainerState):
        yield status, ready, state


def test_rows_are_held_against_their_containers(parts: Parts, user: Person, engine: FakeEngine) -> None:
    made = {case: quiet_row(parts, user, case[0], ready=case[1]) for case in cases()}
    for (_, _, state), sandbox in made.items():
        put(engine, sandbox, state)
    names = set(engine.volumes)
    seen = checked(parts)
    assert {case for case, sandbox in made.items() if sandbox.id in seen} == {
        (status, ready, state) for status, ready, state in made if state not in AS_TOLD[status, ready]
    }
    assert set(engine.volumes) == names
    assert checked(parts) == set(), "those are due now"
    for sandbox in made.values():
        assert (row(parts, Sandbox, sandbox.id).due_at is not None) == (sandbox.id in seen)


@pytest.mark.parametrize("state", [FROZEN, EXITED, CREATED])
def test_paused_sandbox_that_is_another_kind_of_paused_now(
    parts: Parts, user: Person, engine: FakeEngine, state: ContainerState
) -> None:
    stopped = quiet_row(parts, user, Status.PAUSED, pause_kind=PauseKind.STOPPED)
    put(engine, stopped, state)
    assert checked(parts) == ({stopped.id} if state == FROZEN else set())


def test_sandbox_that_never_was_and_left_nothing_is_as_told(parts: Parts, user: Person) -> None:
    quiet_row(parts, user, Status.ERROR, ready=False)
    assert checked(parts) == set()


def test_unanswered_wish_is_looked_at(parts: Parts, user: Person, engine: FakeEngine) -> None:
    sandbox = quiet_row(parts, user, Status.RUNNING, generation=2)
    put(engine, sandbox)
    assert checked(parts) == {sandbox.id}


@pytest.mark.parametrize("held", [True, False])
def test_row_that_somebody_is_at_is_left_alone(parts: Parts, user: Person, engine: FakeEngine, held: bool) -> None:
    columns: dict[str, Any] = {"lease_owner": "worker-2", "lease_until": after(10)} if held else {"due_at": after(10)}
    gone = quiet_row(parts, user, Status.RUNNING, **columns)
    leaving = quiet_row(parts, user, Status.DELETING, **columns)
    name = put(engine, leaving)
    assert checked(parts) == set()
    assert name in engine.containers
    assert row(parts, Sandbox, gone.id).due_at == columns.get("due_at")


def test_lease_that_ran_out_protects_nothing(parts: Parts, user: Person) -> None:
    sandbox = quiet_row(parts, user, Status.RUNNING, lease_owner="worker-2", lease_until=after(-1))
    assert checked(parts) == {sandbox.id}


def test_looking_at_a_difference_ends_it(parts: Parts, user: Person, engine: FakeEngine) -> None:
    sandbox_id = running(parts, user)
    engine.containers[container_name(sandbox_id)].state = EXITED
    assert checked(parts) == {sandbox_id}
    deliver(parts)
    found = row(parts, Sandbox, sandbox_id)
    assert (found.status, found.reason) == (Status.ERROR, "exit_code")
    assert_at_rest(found)
    assert checked(parts) == set()


class TestReaping:
    def test_containers_of_deleted_sandboxes_are_removed(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        kept = put(engine, quiet_row(parts, user, Status.RUNNING))
        put(engine, quiet_row(parts, user, Status.DELETED))
        put(engine, quiet_row(parts, user, Status.DELETED), ContainerState.ABSENT)
        assert checked(parts) == set()
        assert list(engine.containers) == [kept]
        assert list(engine.volumes) == [kept]

    def test_unlabelled_volume_of_a_deleted_sandbox_is_removed(
        self, parts: Parts, user: Person, engine: FakeEngine
    ) -> None:
        name = put(engine, quiet_row(parts, user, Status.DELETED), ContainerState.ABSENT)
        engine.volumes[name] = {}
        resync(parts)
        assert engine.volumes == {}

    def test_leaves_an_unlabelled_volume_that_no_row_explains_alone(
        self, parts: Parts, user: Person, engine: FakeEngine
    ) -> None:
        # Another installation may share the engine.
        name = container_name(stray(user).id)
        engine.volumes[name] = {}
        resync(parts)
        assert list(engine.volumes) == [name]
        assert all_rows(parts.database)["unknown_container"] == []

    def test_leaves_another_installation_alone(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        theirs = put(engine, stray(user), installation="another")
        resync(parts)
        assert theirs in engine.containers
        assert theirs in engine.volumes

    def test_leaves_names_that_are_not_ours_alone(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        name = put(engine, quiet_row(parts, user, Status.DELETED))
        engine.volumes["backup"] = engine.volumes[name]
        resync(parts)
        assert list(engine.volumes) == ["backup"]

    def test_leaves_the_sandboxes_of_another_node_alone(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        # A worker that was given another name, or two workers on one engine.
        make_node(parts.database, "node-b")
        theirs = put(engine, quiet_row(parts, user, Status.RUNNING, node_id="node-b"))
        assert checked(parts) == set()
        assert theirs in engine.containers

    @pytest.mark.parametrize("at", range(6))
    def test_leaves_what_appears_in_the_middle_of_it(
        self, parts: Parts, user: Person, engine: FakeEngine, at: int
    ) -> None:
        def appear(_name: str = "") -> None:
            engine.before.clear()
            running(parts, user)

        if at < 2:
            engine.before = {("list_containers", "list_volumes")[at]: appear}
            resync(parts)
        else:
            working, database = punctuated(parts, at - 2, partial(appear))
            put(engine, quiet_row(parts, user, Status.DELETED))  # so that there is something to reap
            resync(working)
            assert database.passed > at - 2
        deliver(parts)
        assert [found.state for found in engine.containers.values()] == [ContainerState.RUNNING]
        assert len(engine.volumes) == 1


@pytest.mark.parametrize("ask", [check, look])
def test_asking_for_an_unknown_sandbox_touches_neither_store_nor_engine(
    parts: Parts, user: Person, engine: FakeEngine, ask: Ask
) -> None:
    put(engine, quiet_row(parts, user, Status.RUNNING))
    before = all_rows(parts.database)
    ask(parts, "0" * 32)
    deliver(parts)
    assert all_rows(parts.database) == before
    assert engine.calls == []


@pytest.mark.parametrize("ask", [check, look])
def test_asking_for_a_deleted_sandbox_leads_nowhere(parts: Parts, user: Person, ask: Ask) -> None:
    sandbox = quiet_row(parts, user, Status.DELETED)
    ask(parts, sandbox.id)
    deliver(parts)
    found = row(parts, Sandbox, sandbox.id)
    assert (found.status, found.desired) == (Status.DELETED, Desired.DELETED)
    assert_at_rest(found)

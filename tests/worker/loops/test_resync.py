"""Resync of store and engine: rows that differ are checked, containers of deleted sandboxes are removed."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import product
from typing import Any

import pytest
import time_machine

from shared.clock import after, now
from shared.models import Sandbox
from shared.queue.jobs import CheckSandbox
from shared.retention import tombstones
from shared.sandboxes import deadlines
from shared.states import Desired, PauseKind, Status
from tests.doubles import ManualExecutor, RecordingPublisher
from tests.factories import NODE_ID, ApiUser, make_node, make_sandbox
from tests.fakes.engine import IMAGE, FakeEngine
from tests.rows import all_rows
from tests.worker.engine.contents import put, sandbox_without_row
from tests.worker.scenarios import assert_at_rest, deliver, hooked_context, row, running
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState
from worker.loops.recheck import check, recheck
from worker.loops.resync import resync
from worker.loops.sweep import sweep
from worker.sandboxes.container_spec import container_name

Check = Callable[[WorkerContext, str], None]

FROZEN, EXITED, CREATED = ContainerState.PAUSED, ContainerState.EXITED, ContainerState.CREATED
# The states of containers that match a row which is not due, by status and whether the sandbox was ever ready.
MATCHING: dict[tuple[Status, bool], set[ContainerState]] = {
    (Status.RUNNING, True): {ContainerState.RUNNING},
    (Status.PAUSED, True): {FROZEN},
    (Status.ERROR, True): {FROZEN, EXITED, CREATED, ContainerState.ABSENT, ContainerState.DEAD},
    # A sandbox that was never ready has no container and no volume; each row has a volume in this test.
    (Status.ERROR, False): set(),
    # The desired state is not reached, and no worker has a lease.
    (Status.STARTING, False): set(),
    (Status.DELETING, True): set(),
}


def quiet_row(context: WorkerContext, user: ApiUser, status: Status, *, ready: bool = True, **columns: Any) -> Sandbox:
    """Create a row that is not due."""
    columns = {"spec_id": IMAGE, "due_at": None, "ready_at": now() if ready else None, **columns}
    return make_sandbox(context.database, user, status=status, **columns)


def checked(context: WorkerContext) -> set[str]:
    """Run a resync, and return the ids of the sandboxes that it checks."""
    assert isinstance(context.publisher, RecordingPublisher)
    assert isinstance(context.status_checks, ManualExecutor)
    context.publisher.jobs.clear()
    context.status_checks.waiting.clear()
    context.waiting_checks.clear()
    resync(context)
    assert all(isinstance(job, CheckSandbox) and job.node_id == NODE_ID for job in context.publisher.jobs)
    return {job.subject for job in context.publisher.jobs} | {args[1] for _, args in context.status_checks.waiting}


def cases() -> Iterator[tuple[Status, bool, ContainerState]]:
    for (status, ready), state in product(MATCHING, ContainerState):
        yield status, ready, state


def test_rows_that_differ_from_their_containers_are_checked(
    context: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    made = {case: quiet_row(context, user, case[0], ready=case[1]) for case in cases()}
    for (_, _, state), sandbox in made.items():
        put(engine, sandbox, state)
    names = set(engine.volumes)
    found = checked(context)
    assert {case for case, sandbox in made.items() if sandbox.id in found} == {
        (status, ready, state) for status, ready, state in made if state not in MATCHING[status, ready]
    }
    assert set(engine.volumes) == names
    assert checked(context) == set(), "they are due already"
    for sandbox in made.values():
        assert (row(context, Sandbox, sandbox.id).due_at is not None) == (sandbox.id in found)


@pytest.mark.parametrize("state", [FROZEN, EXITED, CREATED])
def test_paused_sandbox_of_another_pause_kind_is_checked(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, state: ContainerState
) -> None:
    stopped = quiet_row(context, user, Status.PAUSED, pause_kind=PauseKind.STOPPED)
    put(engine, stopped, state)
    assert checked(context) == ({stopped.id} if state == FROZEN else set())


@pytest.mark.parametrize("ready", [True, False])
def test_stopped_sandbox_without_a_container_is_checked_only_if_it_was_ready(
    context: WorkerContext, user: ApiUser, ready: bool
) -> None:
    stopped = quiet_row(context, user, Status.PAUSED, ready=ready, pause_kind=PauseKind.STOPPED)
    assert checked(context) == ({stopped.id} if ready else set())


def test_failed_start_without_a_container_is_consistent(context: WorkerContext, user: ApiUser) -> None:
    quiet_row(context, user, Status.ERROR, ready=False)
    assert checked(context) == set()


def test_unobserved_desired_state_is_checked(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    sandbox = quiet_row(context, user, Status.RUNNING, generation=2)
    put(engine, sandbox)
    assert checked(context) == {sandbox.id}


@pytest.mark.parametrize("status", [Status.RUNNING, Status.DELETED])
def test_container_with_the_name_of_another_sandbox_is_kept(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, status: Status
) -> None:
    sandbox, other = quiet_row(context, user, Status.RUNNING), quiet_row(context, user, status)
    container = engine.containers.pop(put(engine, sandbox))
    container.request = replace(container.request, name=container_name(other.id))
    engine.containers[container.request.name] = container
    assert checked(context) == {sandbox.id, other.id} - ({other.id} if status == Status.DELETED else set())
    assert list(engine.containers.values()) == [container]
    assert container.state == ContainerState.RUNNING


def test_second_container_of_a_sandbox_is_quarantined(
    context: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    sandbox = quiet_row(context, user, Status.RUNNING)
    container = engine.containers[put(engine, sandbox)]
    copy = replace(container, request=replace(container.request, name="aw-copy"))
    engine.containers["aw-copy"] = copy
    resync(context)
    assert (container.state, engine.containers["aw-copy"].state) == (ContainerState.RUNNING, ContainerState.PAUSED)


@pytest.mark.parametrize("held", [True, False])
def test_leased_or_due_row_is_skipped(context: WorkerContext, user: ApiUser, engine: FakeEngine, held: bool) -> None:
    columns: dict[str, Any] = {"lease_owner": "worker-2", "lease_until": after(10)} if held else {"due_at": after(10)}
    gone = quiet_row(context, user, Status.RUNNING, **columns)
    leaving = quiet_row(context, user, Status.DELETING, **columns)
    name = put(engine, leaving)
    assert checked(context) == set()
    assert name in engine.containers
    assert row(context, Sandbox, gone.id).due_at == columns.get("due_at")


def test_expired_lease_protects_no_row(context: WorkerContext, user: ApiUser) -> None:
    sandbox = quiet_row(context, user, Status.RUNNING, lease_owner="worker-2", lease_until=after(-1))
    assert checked(context) == {sandbox.id}


def test_check_resolves_a_difference(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    sandbox_id = running(context, user)
    engine.containers[container_name(sandbox_id)].state = EXITED
    assert checked(context) == {sandbox_id}
    deliver(context)
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.reason) == (Status.ERROR, "exit_code")
    assert_at_rest(found)
    assert checked(context) == set()


@pytest.mark.parametrize("column", ["status_changed_at", "last_active_at"])
def test_idle_time_counts_from_now_after_the_clock_was_set_back(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, column: str
) -> None:
    columns: dict[str, Any] = {"freeze_after_seconds": 60, column: after(86400)}
    sandbox = quiet_row(context, user, Status.RUNNING, **columns)
    put(engine, sandbox)
    with context.database.transaction() as session:
        deadlines.refresh(session, sandbox.id)
    resync(context)
    deadline = row(context, Sandbox, sandbox.id).deadline_at
    assert deadline is not None
    assert deadline <= after(60)
    with time_machine.travel(after(30), tick=False):
        resync(context)
    assert row(context, Sandbox, sandbox.id).deadline_at == deadline


class TestReaping:
    def test_containers_of_deleted_sandboxes_are_removed(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        kept = put(engine, quiet_row(context, user, Status.RUNNING))
        put(engine, quiet_row(context, user, Status.DELETED))
        put(engine, quiet_row(context, user, Status.DELETED), ContainerState.ABSENT)
        assert checked(context) == set()
        assert list(engine.containers) == [kept]
        assert list(engine.volumes) == [kept]

    def test_unlabelled_volume_of_a_deleted_sandbox_is_removed(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        name = put(engine, quiet_row(context, user, Status.DELETED), ContainerState.ABSENT)
        engine.volumes[name] = {}
        resync(context)
        assert engine.volumes == {}

    def test_tombstone_stays_while_the_engine_does_not_remove_the_volume(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        """After a failed mount, Docker keeps the record of a volume until it is restarted (`DiskEngine.remove`)."""
        almost = now() - tombstones.RETENTION + timedelta(minutes=1)
        name = put(engine, quiet_row(context, user, Status.DELETED, updated_at=almost), ContainerState.ABSENT)
        engine.shared_volumes.add(name)
        resync(context)
        with time_machine.travel(now() + timedelta(minutes=2), tick=False):
            sweep(context)
            resync(context)
            assert all_rows(context.database)["unknown_container"] == []
            engine.shared_volumes.clear()
            resync(context)
        assert engine.volumes == {}

    def test_unlabelled_volume_without_a_row_is_kept(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        # Another installation may share the engine.
        name = container_name(sandbox_without_row(user).id)
        engine.volumes[name] = {}
        resync(context)
        assert list(engine.volumes) == [name]
        assert all_rows(context.database)["unknown_container"] == []

    def test_containers_of_another_installation_are_kept(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        theirs = put(engine, sandbox_without_row(user), installation="another")
        resync(context)
        assert theirs in engine.containers
        assert theirs in engine.volumes

    def test_volumes_with_foreign_names_are_kept(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        name = put(engine, quiet_row(context, user, Status.DELETED))
        engine.volumes["backup"] = engine.volumes[name]
        resync(context)
        assert list(engine.volumes) == ["backup"]

    def test_containers_of_another_node_are_paused_and_kept(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        # This happens after the restore of a database from before a failover, or if a worker was renamed.
        make_node(context.database, "node-b")
        theirs = put(engine, quiet_row(context, user, Status.RUNNING, node_id="node-b"))
        for _ in range(2):
            assert checked(context) == set()
            assert engine.containers[theirs].state == ContainerState.PAUSED
        assert engine.verbs().count("pause") == 1
        assert all_rows(context.database)["unknown_container"] == []

    @pytest.mark.parametrize("at", range(6))
    def test_containers_that_appear_during_the_resync_are_kept(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine, at: int
    ) -> None:
        def appear(_name: str = "") -> None:
            engine.before.clear()
            running(context, user)

        if at < 2:
            engine.before = {("list_containers", "list_volumes")[at]: appear}
            resync(context)
        else:
            working, database = hooked_context(context, at - 2, partial(appear))
            put(engine, quiet_row(context, user, Status.DELETED))  # so that there is something to reap
            resync(working)
            assert database.passed > at - 2
        deliver(context)
        assert [found.state for found in engine.containers.values()] == [ContainerState.RUNNING]
        assert len(engine.volumes) == 1


@pytest.mark.parametrize("start_check", [check, recheck])
def test_check_of_an_unknown_sandbox_accesses_neither_database_nor_engine(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, start_check: Check
) -> None:
    put(engine, quiet_row(context, user, Status.RUNNING))
    before = all_rows(context.database)
    start_check(context, "0" * 32)
    deliver(context)
    assert all_rows(context.database) == before
    assert engine.calls == []


@pytest.mark.parametrize("start_check", [check, recheck])
def test_check_of_a_deleted_sandbox_has_no_effect(context: WorkerContext, user: ApiUser, start_check: Check) -> None:
    sandbox = quiet_row(context, user, Status.DELETED)
    start_check(context, sandbox.id)
    deliver(context)
    found = row(context, Sandbox, sandbox.id)
    assert (found.status, found.desired) == (Status.DELETED, Desired.DELETED)
    assert_at_rest(found)

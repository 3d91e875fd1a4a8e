"""A store restored from a backup lists a user's sandbox as warm or as idle: its files must stay."""

from datetime import timedelta

import pytest

from shared.clock import now
from shared.models import Sandbox, SandboxSpec
from shared.sandboxes import quarantine
from shared.states import Desired, Reason, Status
from shared.warm_pool.policy import OLD
from tests.factories import NODE_ID, ApiUser, make_user
from tests.fakes.engine import IMAGE, FakeEngine
from tests.worker.scenarios import (
    INSTALLATION,
    LLM_KEY,
    another,
    assert_failed,
    change,
    claim,
    configure,
    deliver,
    request_start,
    row,
    server_of,
    set_desired,
    store_settings,
    task_of,
    warm,
)
from worker.context import WorkerContext
from worker.engine.docker_engine import INSTALLATION_LABEL, OWNER_LABEL
from worker.engine.protocol import ContainerState
from worker.loops.recheck import recheck
from worker.loops.resync import resync
from worker.loops.warm_pool import reconcile_pools
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile

FROZEN, EXITED = ContainerState.PAUSED, ContainerState.EXITED
CONVERSATION = "c" * 32


@pytest.fixture
def other_user(context: WorkerContext) -> ApiUser:
    return make_user(context.database, "bertha")


@pytest.fixture
def restored_sandbox(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> str:
    """A sandbox with a conversation, which was warm when the store was backed up."""
    warm_id = make_warm_sandbox(context)
    backup = row(context, Sandbox, warm_id).model_dump()
    assert claim(context, user) == warm_id
    reconcile(context, warm_id)
    assert row(context, Sandbox, warm_id).status == Status.RUNNING
    server_of(engine, warm_id).add(CONVERSATION)
    change(context, Sandbox, warm_id, **backup)
    return warm_id


def make_warm_sandbox(context: WorkerContext) -> str:
    warm_id = warm(context)
    reconcile(context, warm_id)
    assert row(context, Sandbox, warm_id).status == Status.RUNNING
    return warm_id


def reconcile_empty_pool(context: WorkerContext) -> None:
    """Reconcile a pool whose target is zero."""
    with context.database.transaction() as session:
        spec = session.get_one(SandboxSpec, IMAGE)
        spec.warm_target, spec.warm_most = 0, 1
    reconcile_pools(context)
    deliver(context)


def in_quarantine(context: WorkerContext) -> list[str]:
    with context.database.reading() as session:
        return [found.name for found in quarantine.find(session, NODE_ID)]


def assert_kept(context: WorkerContext, engine: FakeEngine, sandbox_id: str, state: ContainerState = FROZEN) -> None:
    """The row is deleted, and its container and its files are in quarantine."""
    name = container_name(sandbox_id)
    resync(context)
    deliver(context)
    assert list(engine.volumes) == [name]
    assert engine.containers[name].state == state
    assert CONVERSATION in server_of(engine, sandbox_id).conversations
    assert in_quarantine(context) == [name]
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.reason) == (Status.DELETED, Reason.ALREADY_USED)


def test_recheck_removes_a_used_sandbox_from_the_pool(
    context: WorkerContext, engine: FakeEngine, restored_sandbox: str
) -> None:
    recheck(context, restored_sandbox)
    deliver(context)
    reconcile_empty_pool(context)
    assert_kept(context, engine, restored_sandbox)


def test_used_sandbox_is_not_removed_for_its_age(
    context: WorkerContext, engine: FakeEngine, restored_sandbox: str
) -> None:
    change(context, Sandbox, restored_sandbox, created_at=now() - OLD - timedelta(hours=1))
    reconcile_empty_pool(context)
    assert_kept(context, engine, restored_sandbox)


@pytest.mark.parametrize("state", [FROZEN, EXITED])
def test_used_sandbox_is_not_removed_while_paused_or_stopped(
    context: WorkerContext, engine: FakeEngine, restored_sandbox: str, state: ContainerState
) -> None:
    name = container_name(restored_sandbox)
    engine.pause(name) if state == FROZEN else engine.stop(name, 1)
    for _ in range(2):
        resync(context)
        deliver(context)
        reconcile_empty_pool(context)
    assert_kept(context, engine, restored_sandbox, state)


def test_used_sandbox_that_does_not_respond_is_not_removed(
    context: WorkerContext, engine: FakeEngine, restored_sandbox: str
) -> None:
    engine.silent.add(container_name(restored_sandbox))
    reconcile_empty_pool(context)
    assert_kept(context, engine, restored_sandbox)


def test_used_sandbox_that_was_restarted_for_its_owner_is_not_removed(
    context: WorkerContext, engine: FakeEngine, restored_sandbox: str
) -> None:
    """Its server was booted with its owner's keys, and does not know deferred init."""
    server = server_of(engine, restored_sandbox)
    server.boot_key, engine.containers[container_name(restored_sandbox)].files = None, {}
    engine.containers[container_name(restored_sandbox)].files["config"] = b'{"session_api_keys": ["theirs"]}'
    reconcile_empty_pool(context)
    assert_kept(context, engine, restored_sandbox)


def test_claim_fails_with_a_reason(
    context: WorkerContext, engine: FakeEngine, restored_sandbox: str, other_user: ApiUser
) -> None:
    configure(context, other_user)
    store_settings(context, other_user, llm_api_key=LLM_KEY)
    with context.database.transaction() as session:
        session.get_one(SandboxSpec, IMAGE).warm_most = 1
    task_id = request_start(context, other_user)
    assert task_of(context, task_id).sandbox_id == restored_sandbox
    reconcile(context, restored_sandbox)
    deliver(context)
    assert_failed(context, task_id, Reason.SANDBOX_FAILED, Reason.ALREADY_USED)
    assert_kept(context, engine, restored_sandbox)


@pytest.mark.parametrize("state", [FROZEN, EXITED])
def test_claim_of_a_paused_or_stopped_sandbox_gets_no_other_user_s_files(
    context: WorkerContext, engine: FakeEngine, restored_sandbox: str, other_user: ApiUser, state: ContainerState
) -> None:
    name = container_name(restored_sandbox)
    engine.pause(name) if state == FROZEN else engine.stop(name, 1)
    assert claim(context, other_user) == restored_sandbox
    reconcile(context, restored_sandbox)
    assert_kept(context, engine, restored_sandbox, state)


def test_claim_of_a_volume_alone_gets_no_other_user_s_files(
    context: WorkerContext, engine: FakeEngine, restored_sandbox: str, other_user: ApiUser
) -> None:
    engine.remove_container(container_name(restored_sandbox))
    assert claim(context, other_user) == restored_sandbox
    reconcile(context, restored_sandbox)
    assert_kept(context, engine, restored_sandbox, ContainerState.CREATED)


def test_claim_whose_container_was_removed_boots_on_its_unused_volume(
    context: WorkerContext, engine: FakeEngine, user: ApiUser
) -> None:
    warm_id = make_warm_sandbox(context)
    engine.remove_container(container_name(warm_id))
    assert claim(context, user) == warm_id
    reconcile(context, warm_id)
    assert (row(context, Sandbox, warm_id).status, in_quarantine(context)) == (Status.RUNNING, [])


def test_claim_of_a_volume_alone_that_fails_removes_nothing(
    context: WorkerContext, engine: FakeEngine, restored_sandbox: str, other_user: ApiUser
) -> None:
    engine.remove_container(container_name(restored_sandbox))
    assert claim(context, other_user) == restored_sandbox
    engine.images.clear()
    engine.pullable.clear()
    reconcile(context, restored_sandbox)
    assert row(context, Sandbox, restored_sandbox).status == Status.ERROR
    resync(context)
    assert list(engine.volumes) == [container_name(restored_sandbox)]


def test_claim_whose_container_is_gone_creates_its_own_in_two_attempts(
    context: WorkerContext, engine: FakeEngine, user: ApiUser
) -> None:
    warm_id = make_warm_sandbox(context)
    engine.remove(container_name(warm_id))
    assert claim(context, user) == warm_id

    def leave_the_volume(name: str) -> None:
        sandbox = row(context, Sandbox, warm_id)
        engine.volumes[name] = {INSTALLATION_LABEL: INSTALLATION, OWNER_LABEL: str(sandbox.owner_id)}

    engine.before["create"], engine.fail["create"] = leave_the_volume, 1
    for _ in range(2):
        reconcile(context, warm_id)
        change(context, Sandbox, warm_id, due_at=now())
    assert row(context, Sandbox, warm_id).status == Status.RUNNING


def test_claim_that_is_deleted_immediately_keeps_the_files(
    context: WorkerContext, engine: FakeEngine, restored_sandbox: str, other_user: ApiUser
) -> None:
    assert claim(context, other_user) == restored_sandbox
    set_desired(context, restored_sandbox, Desired.DELETED)
    reconcile(context, restored_sandbox)
    assert_kept(context, engine, restored_sandbox)


def test_sandbox_that_booted_during_the_backup_is_not_booted_for_the_pool(
    context: WorkerContext, engine: FakeEngine, restored_sandbox: str
) -> None:
    columns = {"generation": 2, "observed_generation": 1, "due_at": now(), "ready_at": None}
    change(context, Sandbox, restored_sandbox, status=Status.STARTING, **columns)
    engine.stop(container_name(restored_sandbox), 1)
    reconcile(context, restored_sandbox)
    assert_kept(context, engine, restored_sandbox, EXITED)


def test_engine_that_refuses_the_check_removes_nothing(
    context: WorkerContext, engine: FakeEngine, restored_sandbox: str
) -> None:
    engine.silent.add(container_name(restored_sandbox))
    engine.refuse["has_new_files"] = 1
    reconcile_empty_pool(context)
    assert_kept(context, engine, restored_sandbox)


def test_restored_row_gets_its_files_back(
    context: WorkerContext, engine: FakeEngine, user: ApiUser, restored_sandbox: str
) -> None:
    reconcile_empty_pool(context)
    assert_kept(context, engine, restored_sandbox)
    columns = {"desired": Desired.RUNNING, "status": Status.RUNNING, "reason": None, "owner_id": user.id}
    change(context, Sandbox, restored_sandbox, **columns)
    resync(another(context))
    deliver(context)
    found = row(context, Sandbox, restored_sandbox)
    assert (found.status, found.reason, in_quarantine(context)) == (Status.PAUSED, Reason.PAUSED_OUTSIDE, [])


@pytest.mark.parametrize("state", [ContainerState.RUNNING, FROZEN, EXITED])
def test_warm_sandbox_without_a_claim_is_removed_immediately(
    context: WorkerContext, engine: FakeEngine, state: ContainerState
) -> None:
    name = container_name(make_warm_sandbox(context))
    if state != ContainerState.RUNNING:
        engine.pause(name) if state == FROZEN else engine.stop(name, 1)
    reconcile_empty_pool(context)
    resync(context)
    assert (engine.volumes, in_quarantine(context)) == ({}, [])


def test_warm_sandbox_that_a_dead_worker_has_initialized_can_be_deleted(
    context: WorkerContext, engine: FakeEngine, user: ApiUser
) -> None:
    """The sandbox has no files, and its server accepts the key of the row."""
    warm_id = make_warm_sandbox(context)
    assert claim(context, user) == warm_id
    key = context.vault.decrypt(row(context, Sandbox, warm_id).session_key)
    server = server_of(engine, warm_id)
    server.is_dormant, server.session_key = False, key
    set_desired(context, warm_id, Desired.DELETED)
    reconcile(context, warm_id)
    assert (engine.volumes, row(context, Sandbox, warm_id).reason) == ({}, None)


def test_server_that_knows_no_deferred_init_is_removed(context: WorkerContext, engine: FakeEngine) -> None:
    warm_id = warm(context)

    def clear_files(name: str) -> None:
        engine.containers[name].files.clear()

    engine.before["start"] = clear_files
    reconcile(context, warm_id)
    assert (row(context, Sandbox, warm_id).reason, engine.volumes) == (Reason.NOT_DORMANT, {})

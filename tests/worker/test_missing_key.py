"""A worker that lacks a secret key, while another process writes with it: during a change of keys, for example."""

from dataclasses import replace

import pytest

from shared.crypto import Vault, new_secret_key
from shared.models import Sandbox, StartTask
from shared.states import Desired, Reason, Stage, Status
from tests.doubles import ImmediateExecutor
from tests.factories import ApiUser
from tests.fakes.engine import FakeEngine
from tests.worker.scenarios import (
    change,
    claim,
    configure,
    request_start,
    row,
    running,
    server_of,
    set_desired,
    start,
    warm,
)
from worker.context import WorkerContext
from worker.conversations.start import start_conversation
from worker.loops.health_monitor import SHARDS, LivenessMonitor
from worker.sandboxes.reconciler import reconcile

# More runs than the max attempts after a bug in this service.
TIMES = 8


@pytest.fixture
def complete_context(context: WorkerContext) -> WorkerContext:
    """Context of a worker that has the new key, too."""
    return replace(context, vault=Vault([new_secret_key(), *context.shared.vault_keys]))


def rekey(complete_context: WorkerContext, sandbox_id: str) -> None:
    sealed = complete_context.vault.encrypt(
        complete_context.vault.decrypt(row(complete_context, Sandbox, sandbox_id).session_key)
    )
    change(complete_context, Sandbox, sandbox_id, session_key=sealed)


def test_start_waits_for_the_key_and_shows_the_reason(
    context: WorkerContext, complete_context: WorkerContext, user: ApiUser
) -> None:
    sandbox_id = start(context, user)
    rekey(complete_context, sandbox_id)
    for _ in range(TIMES):
        reconcile(context, sandbox_id)
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.reason) == (Status.STARTING, Reason.SECRET_KEY_MISSING)
    assert "AW_SECRET_KEYS must include the key that encrypted it; the worker retries" in str(found.detail)
    assert found.due_at is not None
    reconcile(complete_context, sandbox_id)
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.reason) == (Status.RUNNING, None)


def test_start_of_a_conversation_waits_for_the_key(
    context: WorkerContext, complete_context: WorkerContext, user: ApiUser
) -> None:
    configure(context, user)
    task_id = request_start(complete_context, user, running(context, user))
    for _ in range(TIMES):
        start_conversation(context, task_id)
    found = row(context, StartTask, task_id)
    assert (found.stage in (Stage.READY, Stage.ERROR), found.due_at is None) == (False, False)
    start_conversation(complete_context, task_id)
    assert row(context, StartTask, task_id).stage == Stage.READY


@pytest.mark.parametrize(("desired", "status"), [(Desired.PAUSED, Status.PAUSED), (Desired.DELETED, Status.DELETED)])
def test_running_sandbox_keeps_running_until_it_is_ended(
    context: WorkerContext,
    complete_context: WorkerContext,
    user: ApiUser,
    engine: FakeEngine,
    desired: Desired,
    status: Status,
) -> None:
    sandbox_id = running(context, user)
    rekey(complete_context, sandbox_id)
    monitor = LivenessMonitor(context, probes=ImmediateExecutor(), checks=ImmediateExecutor())
    for _ in range(TIMES * len(SHARDS)):
        monitor.probe_next_shard()
    change(context, Sandbox, sandbox_id, due_at=row(context, Sandbox, sandbox_id).created_at)
    for _ in range(TIMES):
        reconcile(context, sandbox_id)
    assert row(context, Sandbox, sandbox_id).status == Status.RUNNING
    assert "stop" not in engine.verbs()
    set_desired(context, sandbox_id, desired)
    reconcile(context, sandbox_id)
    assert row(context, Sandbox, sandbox_id).status == status


@pytest.mark.parametrize("claimed", [False, True])
def test_sandbox_of_the_warm_pool_is_deleted_without_its_key(
    context: WorkerContext, complete_context: WorkerContext, user: ApiUser, engine: FakeEngine, claimed: bool
) -> None:
    """If the key is lost, no retry succeeds. The files show that no other user has used the container."""
    sandbox_id = warm(context)
    reconcile(context, sandbox_id)
    if claimed:
        assert claim(context, user) == sandbox_id
    rekey(complete_context, sandbox_id)
    set_desired(context, sandbox_id, Desired.DELETED)
    reconcile(context, sandbox_id)
    assert (row(context, Sandbox, sandbox_id).status, engine.containers, engine.volumes) == (Status.DELETED, {}, {})


def test_used_sandbox_is_quarantined_without_its_key(
    context: WorkerContext, complete_context: WorkerContext, engine: FakeEngine
) -> None:
    """A restored database may list it as warm."""
    sandbox_id = warm(context)
    reconcile(context, sandbox_id)
    server_of(engine, sandbox_id).add("c" * 32)
    rekey(complete_context, sandbox_id)
    set_desired(context, sandbox_id, Desired.DELETED)
    reconcile(context, sandbox_id)
    assert (row(context, Sandbox, sandbox_id).reason, len(engine.volumes)) == (Reason.ALREADY_USED, 1)

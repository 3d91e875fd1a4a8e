"""A sandbox from the warm pool belongs to its owner once it was ready: its new files are no sign of another owner."""

from functools import partial

import pytest

from shared.models import Sandbox
from shared.states import Desired, Reason, Status
from tests.factories import ApiUser
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.engine import FakeEngine
from tests.worker.loops.failover.nodes import lose
from tests.worker.scenarios import claim, deliver, row, server_of, set_desired, warm
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState
from worker.loops.resync import resync
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile


@pytest.fixture
def used_sandbox(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> str:
    """A claimed sandbox in which a conversation has begun, and whose container has exited."""
    sandbox_id = warm(context)
    reconcile(context, sandbox_id)
    assert claim(context, user) == sandbox_id
    reconcile(context, sandbox_id)
    assert row(context, Sandbox, sandbox_id).ready_at is not None
    server_of(engine, sandbox_id).add("c" * 32)
    engine.containers[container_name(sandbox_id)].state = ContainerState.EXITED
    return sandbox_id


def test_failed_sandbox_keeps_its_files_for_its_owner(
    context: WorkerContext, engine: FakeEngine, used_sandbox: str
) -> None:
    resync(context)
    deliver(context)
    found = row(context, Sandbox, used_sandbox)
    assert (found.status, found.reason, found.desired) == (Status.ERROR, Reason.EXIT_CODE, Desired.RUNNING)
    assert list(engine.volumes) == [container_name(used_sandbox)]
    set_desired(context, used_sandbox, Desired.RUNNING)
    reconcile(context, used_sandbox)
    assert row(context, Sandbox, used_sandbox).status == Status.RUNNING


def test_deleted_sandbox_leaves_nothing(context: WorkerContext, engine: FakeEngine, used_sandbox: str) -> None:
    set_desired(context, used_sandbox, Desired.DELETED)
    reconcile(context, used_sandbox)
    found = row(context, Sandbox, used_sandbox)
    assert (found.status, found.reason, engine.volumes) == (Status.DELETED, None, {})


def test_warm_server_that_an_operator_started_is_initialized_after_a_freeze(
    context: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    """Its container still has the configuration of the warm pool, which a start by the worker would replace."""
    sandbox_id = warm(context)
    reconcile(context, sandbox_id)
    claim(context, user)
    for desired in (Desired.RUNNING, Desired.STOPPED):
        set_desired(context, sandbox_id, desired)
        reconcile(context, sandbox_id)
    engine.start(container_name(sandbox_id))
    boot_as_warm(server_of(engine, sandbox_id))
    for desired in (Desired.PAUSED, Desired.RUNNING):
        set_desired(context, sandbox_id, desired)
        reconcile(context, sandbox_id)
        found = row(context, Sandbox, sandbox_id)
        assert (found.status, found.reason) == (Status(desired), None)
    assert not server_of(engine, sandbox_id).is_dormant


def boot_as_warm(server: FakeAgentServer) -> None:
    server.session_key, server.secret_key, server.is_dormant = None, None, True


def make_folders(engine: FakeEngine, name: str) -> None:
    """Write into the folders, as an agent server may do while it boots."""
    engine.servers[name].add("d" * 32)


@pytest.mark.parametrize(("at_boot", "reason"), [(1, Reason.EXIT_CODE), ("never", Reason.HEALTH_TIMEOUT)])
def test_moved_sandbox_belongs_to_its_owner_before_its_boot_succeeds(
    context: WorkerContext,
    other_worker: WorkerContext,
    used_sandbox: str,
    other_engine: FakeEngine,
    at_boot: int | str,
    reason: Reason,
) -> None:
    lose(other_worker)
    set_desired(other_worker, used_sandbox, Desired.RUNNING)
    lose(other_worker)
    other_engine.at_boot = at_boot
    other_engine.before["start"] = partial(make_folders, other_engine)
    deliver(other_worker)
    found = row(context, Sandbox, used_sandbox)
    assert (found.node_id, found.status, found.reason) == ("node-b", Status.ERROR, reason)
    assert found.desired == Desired.RUNNING
    other_engine.at_boot = None
    set_desired(other_worker, used_sandbox, Desired.RUNNING)
    reconcile(other_worker, used_sandbox)
    assert row(context, Sandbox, used_sandbox).status == Status.RUNNING

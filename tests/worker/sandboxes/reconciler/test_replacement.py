"""Containers that publish ports, as those from before decision 54 do, are replaced; their files are kept."""

import pytest

from shared.clock import after, now
from shared.models import Sandbox
from shared.states import Desired, Status
from tests.factories import Person
from tests.fakes.engine import FakeEngine
from tests.worker.scenes import another, change, deliver, row, running, set_desired
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState
from worker.loops.resync import resync
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile


@pytest.fixture
def old(context: WorkerContext, user: Person, engine: FakeEngine) -> str:
    """A running sandbox with a container from before."""
    sandbox_id = running(context, user)
    engine.containers[container_name(sandbox_id)].is_published = True
    engine.put_file(container_name(sandbox_id), "/workspace/project/kept", b"precious")
    engine.calls.clear()
    return sandbox_id


def test_running_one_is_replaced_by_the_resync(context: WorkerContext, engine: FakeEngine, old: str) -> None:
    resync(context)
    deliver(context)
    assert_replaced(context, engine, old)
    assert engine.verbs() == ["unpause", "stop", "remove_container", "create", "put_file", "start"]
    engine.calls.clear()
    resync(context)
    deliver(context)
    assert engine.verbs() == []


@pytest.mark.parametrize("desired", [Desired.PAUSED, Desired.STOPPED])
def test_paused_one_is_replaced_by_its_resume(
    context: WorkerContext, engine: FakeEngine, old: str, desired: Desired
) -> None:
    set_desired(context, old, desired)
    reconcile(context, old)
    resync(context)
    deliver(context)
    assert row(context, Sandbox, old).status == Status.PAUSED
    assert engine.containers[container_name(old)].is_published
    set_desired(context, old, Desired.RUNNING)
    reconcile(context, old)
    assert_replaced(context, engine, old)


def test_worker_that_dies_in_between_leaves_a_replacement_to_the_next(
    context: WorkerContext, engine: FakeEngine, old: str
) -> None:
    def die(_name: str) -> None:
        raise SystemExit

    engine.before["create"] = die
    resync(context)
    with pytest.raises(SystemExit):
        deliver(context)
    del engine.before["create"]
    change(context, Sandbox, old, lease_until=after(-1), due_at=now())
    reconcile(another(context), old)
    assert_replaced(context, engine, old)


def assert_replaced(context: WorkerContext, engine: FakeEngine, sandbox_id: str) -> None:
    found, container = row(context, Sandbox, sandbox_id), engine.containers[container_name(sandbox_id)]
    assert (found.status, found.reason) == (Status.RUNNING, None)
    assert (container.state, container.is_published) == (ContainerState.RUNNING, False)
    assert container.address in str(found.exposed_urls)
    assert engine.servers[container_name(sandbox_id)].files["/workspace/project/kept"] == b"precious"

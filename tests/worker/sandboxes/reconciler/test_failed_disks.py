"""Containers whose disk has become read-only are replaced once the node's disk has space; their files are kept."""

import pytest

from shared.models import Conversation, Sandbox
from shared.states import Desired, Status
from tests.factories import ApiUser, make_conversation
from tests.fakes.engine import FakeEngine
from tests.worker.scenarios import deliver, row, running, server_of, set_desired
from worker.context import WorkerContext
from worker.loops.resync import resync
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile


@pytest.fixture
def failed_sandbox(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> str:
    """A running sandbox with such a disk, and with an agent that runs."""
    sandbox_id = running(context, user)
    name = container_name(sandbox_id)
    engine.put_file(name, "/workspace/project/kept", b"precious")
    server_of(engine, sandbox_id).add("1" * 32, execution_status="running")
    make_conversation(context.database, user, row(context, Sandbox, sandbox_id), id="1" * 32, title_settled=True)
    engine.failed_disks.add(name)
    engine.calls.clear()
    return sandbox_id


def test_running_container_is_replaced_once_and_its_agents_continue(
    context: WorkerContext, engine: FakeEngine, failed_sandbox: str
) -> None:
    for _ in range(2):
        resync(context)
        deliver(context)
    assert engine.verbs() == ["unpause", "stop", "remove_container", "create", "put_file", "start"]
    assert (row(context, Sandbox, failed_sandbox).status, engine.failed_disks) == (Status.RUNNING, set())
    assert engine.servers[container_name(failed_sandbox)].files["/workspace/project/kept"] == b"precious"
    assert server_of(engine, failed_sandbox).conversations["1" * 32].execution_status == "running"
    assert not row(context, Conversation, "1" * 32).awaits_sandbox


def test_container_is_not_replaced_while_the_nodes_disk_is_nearly_full(
    context: WorkerContext, engine: FakeEngine, failed_sandbox: str
) -> None:
    min_free = context.settings.min_free_disk_bytes
    for free, is_replaced in ((min_free - 1, False), (min_free, True)):
        engine.free = free
        resync(context)
        deliver(context)
        assert ("create" in engine.verbs(of=failed_sandbox)) == is_replaced


def test_frozen_container_is_replaced_by_its_resume(
    context: WorkerContext, engine: FakeEngine, failed_sandbox: str
) -> None:
    set_desired(context, failed_sandbox, Desired.PAUSED)
    reconcile(context, failed_sandbox)
    resync(context)
    deliver(context)
    assert engine.verbs() == ["pause"]
    set_desired(context, failed_sandbox, Desired.RUNNING)
    reconcile(context, failed_sandbox)
    assert engine.verbs() == ["pause", "unpause", "stop", "remove_container", "create", "put_file", "start"]
    assert (row(context, Sandbox, failed_sandbox).status, engine.failed_disks) == (Status.RUNNING, set())

"""Containers whose disk rejects writes are replaced once the node's disk has space; their files are kept."""

from dataclasses import replace
from time import monotonic

import pytest

from shared.models import Conversation, Sandbox
from shared.states import Desired, Status
from tests.factories import ApiUser, make_conversation
from tests.fakes.engine import FakeEngine
from tests.worker.scenarios import deliver, row, running, server_of, set_desired
from worker.context import WorkerContext
from worker.loops.resync import resync
from worker.sandboxes import failed_disks
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.failed_disks import MIN_FREE_BYTES
from worker.sandboxes.reconciler import reconcile

REPLACED = ["unpause", "stop", "remove_container", "create", "put_file", "start"]


@pytest.fixture
def failed_sandbox(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> str:
    """A running sandbox with such a disk, and with an agent that runs."""
    sandbox_id = running(context, user)
    name = container_name(sandbox_id)
    engine.put_file(name, "/workspace/project/kept", b"precious")
    server_of(engine, sandbox_id).add("1" * 32, execution_status="running")
    make_conversation(context.database, user, row(context, Sandbox, sandbox_id), id="1" * 32, title_settled=True)
    engine.failed_disks.add(name)
    engine.free = context.settings.min_free_disk_bytes
    engine.calls.clear()
    return sandbox_id


def test_running_container_is_replaced_once_and_its_agents_continue(
    context: WorkerContext, engine: FakeEngine, failed_sandbox: str
) -> None:
    compare(context, times=2)
    assert engine.verbs() == REPLACED
    assert (row(context, Sandbox, failed_sandbox).status, engine.failed_disks) == (Status.RUNNING, set())
    assert engine.servers[container_name(failed_sandbox)].files["/workspace/project/kept"] == b"precious"
    assert server_of(engine, failed_sandbox).conversations["1" * 32].execution_status == "running"
    assert not row(context, Conversation, "1" * 32).awaits_sandbox


@pytest.mark.parametrize("free", [None, -1])
def test_container_is_replaced_only_if_the_nodes_disk_is_known_to_have_space(
    context: WorkerContext, engine: FakeEngine, failed_sandbox: str, free: int | None
) -> None:
    enough, engine.free = engine.free, free if free is None else (engine.free or 0) + free
    compare(context)
    assert engine.verbs() == []
    engine.free = enough
    compare(context)
    assert "create" in engine.verbs(of=failed_sandbox)


def test_disk_of_the_node_must_have_some_space_even_if_no_minimum_is_set(
    context: WorkerContext, engine: FakeEngine, failed_sandbox: str
) -> None:
    settings = context.settings.model_copy(update={"min_free_disk_bytes": 0})
    without_minimum, engine.free = replace(context, settings=settings), MIN_FREE_BYTES - 1
    compare(without_minimum)
    assert engine.verbs() == []
    engine.free = MIN_FREE_BYTES
    compare(without_minimum)
    assert "create" in engine.verbs(of=failed_sandbox)


def test_disk_that_a_restart_does_not_repair_ends_the_container_only_now_and_then(
    context: WorkerContext, engine: FakeEngine, failed_sandbox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.before["start"] = engine.failed_disks.add
    compare(context, times=3)
    assert engine.verbs(of=failed_sandbox) == REPLACED
    later = monotonic() + failed_disks.PAUSE_SECONDS
    monkeypatch.setattr(failed_disks, "monotonic", lambda: later)
    compare(context, times=3)
    assert engine.verbs() == 2 * REPLACED


def test_failed_disk_is_logged_once(
    context: WorkerContext, engine: FakeEngine, failed_sandbox: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine.free = None
    compare(context, times=3)
    assert str([record.msg for record in caplog.records]).count("disk_failed") == 1
    assert container_name(failed_sandbox) in caplog.text


def test_frozen_container_is_replaced_by_its_resume(
    context: WorkerContext, engine: FakeEngine, failed_sandbox: str
) -> None:
    set_desired(context, failed_sandbox, Desired.PAUSED)
    reconcile(context, failed_sandbox)
    compare(context)
    assert engine.verbs() == ["pause"]
    set_desired(context, failed_sandbox, Desired.RUNNING)
    reconcile(context, failed_sandbox)
    assert engine.verbs() == ["pause", *REPLACED]
    assert (row(context, Sandbox, failed_sandbox).status, engine.failed_disks) == (Status.RUNNING, set())


def compare(context: WorkerContext, *, times: int = 1) -> None:
    """Compare the store with the engine, and carry out the jobs that follow."""
    for _ in range(times):
        resync(context)
        deliver(context)

"""Containers that a door does not reach are replaced; their files are kept.

They publish ports, as those from before decision 54 do, are in a network from before a change of its settings, or were
disconnected from their network.
"""

from dataclasses import replace

import pytest

from shared.clock import after, now
from shared.models import Conversation, Sandbox
from shared.states import Desired, Status
from tests.factories import ApiUser, make_conversation
from tests.fakes.engine import FakeEngine
from tests.worker.scenarios import another, change, deliver, row, running, server_of, set_desired
from worker.context import WorkerContext
from worker.conversations.refresh import refresh_conversation
from worker.engine.protocol import ContainerState, NetworkEndpoint
from worker.loops.resync import resync
from worker.sandboxes.container_spec import container_name, is_outdated
from worker.sandboxes.reconciler import reconcile


@pytest.fixture(params=["published", "elsewhere", "disconnected"])
def outdated_sandbox(request: pytest.FixtureRequest, context: WorkerContext, user: ApiUser, engine: FakeEngine) -> str:
    """A running sandbox with such a container."""
    sandbox_id = running(context, user)
    container = engine.containers[container_name(sandbox_id)]
    if request.param == "published":
        container.is_published = True
    elif request.param == "disconnected":
        container.is_disconnected = True
    else:
        container.request = replace(container.request, network=NetworkEndpoint("agent-workspace-former", "10.9.0.1"))
    engine.put_file(container_name(sandbox_id), "/workspace/project/kept", b"precious")
    engine.calls.clear()
    return sandbox_id


def test_running_container_is_replaced_by_the_resync(
    context: WorkerContext, engine: FakeEngine, outdated_sandbox: str
) -> None:
    resync(context)
    deliver(context)
    assert_replaced(context, engine, outdated_sandbox)
    assert engine.verbs() == ["unpause", "stop", "remove_container", "create", "put_file", "start"]
    engine.calls.clear()
    resync(context)
    deliver(context)
    assert engine.verbs() == []


def test_agents_continue_after_the_replacement(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, outdated_sandbox: str
) -> None:
    server = server_of(engine, outdated_sandbox)
    for name, status in (("1", "running"), ("2", "paused")):
        server.add(name * 32, execution_status=status)
        sandbox = row(context, Sandbox, outdated_sandbox)
        make_conversation(context.database, user, sandbox, id=name * 32, title_settled=True)
    resync(context)
    deliver(context)
    assert_replaced(context, engine, outdated_sandbox)
    assert [server.conversations[name * 32].execution_status for name in "12"] == ["running", "paused"]
    assert not row(context, Conversation, "1" * 32).awaits_sandbox


def test_agent_that_is_refreshed_during_the_replacement_continues_after_it(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, sandbox_id: str
) -> None:
    """The refresh continues the interrupted agent, whose server ends then."""
    former = engine.containers[container_name(sandbox_id)]
    former.is_published = True
    sandbox = row(context, Sandbox, sandbox_id)
    conversation = make_conversation(context.database, user, sandbox, title_settled=True)
    agent = server_of(engine, sandbox_id).add(conversation.id, execution_status="running")

    def refresh(_name: str) -> None:
        change(context, Conversation, conversation.id, due_at=now())
        refresh_conversation(another(context), conversation.id)
        agent.interrupt()

    engine.before["stop"] = refresh
    resync(context)
    deliver(context)
    assert engine.containers[container_name(sandbox_id)] is not former
    assert agent.execution_status == "running"
    assert not row(context, Conversation, conversation.id).awaits_sandbox


@pytest.mark.parametrize("desired", [Desired.PAUSED, Desired.STOPPED])
def test_paused_container_is_replaced_by_its_resume(
    context: WorkerContext, engine: FakeEngine, outdated_sandbox: str, desired: Desired
) -> None:
    set_desired(context, outdated_sandbox, desired)
    reconcile(context, outdated_sandbox)
    resync(context)
    deliver(context)
    assert row(context, Sandbox, outdated_sandbox).status == Status.PAUSED
    assert is_outdated(engine.containers[container_name(outdated_sandbox)].summary, None)
    set_desired(context, outdated_sandbox, Desired.RUNNING)
    reconcile(context, outdated_sandbox)
    assert_replaced(context, engine, outdated_sandbox)


def test_stopped_container_without_its_network_is_replaced_by_its_resume(
    context: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    """The engine can't start the sandbox's container, which names the removed network by its id."""
    sandbox_id = running(context, user)
    container = engine.containers[container_name(sandbox_id)]
    engine.put_file(container_name(sandbox_id), "/workspace/project/kept", b"precious")
    set_desired(context, sandbox_id, Desired.STOPPED)
    reconcile(context, sandbox_id)
    engine.containers[container_name(sandbox_id)].is_cut_off = True
    set_desired(context, sandbox_id, Desired.RUNNING)
    for _ in range(2):
        reconcile(context, sandbox_id)
    assert_replaced(context, engine, sandbox_id)
    assert engine.containers[container_name(sandbox_id)].container_id != container.container_id


def test_replacement_is_completed_after_the_death_of_a_worker(
    context: WorkerContext, engine: FakeEngine, outdated_sandbox: str
) -> None:
    def die(_name: str) -> None:
        raise SystemExit

    engine.before["create"] = die
    resync(context)
    with pytest.raises(SystemExit):
        deliver(context)
    del engine.before["create"]
    change(context, Sandbox, outdated_sandbox, lease_until=after(-1), due_at=now())
    reconcile(another(context), outdated_sandbox)
    assert_replaced(context, engine, outdated_sandbox)


def assert_replaced(context: WorkerContext, engine: FakeEngine, sandbox_id: str) -> None:
    found, container = row(context, Sandbox, sandbox_id), engine.containers[container_name(sandbox_id)]
    assert (found.status, found.reason) == (Status.RUNNING, None)
    assert (container.state, is_outdated(container.summary, None)) == (ContainerState.RUNNING, False)
    assert container.address in str(found.exposed_urls)
    assert engine.servers[container_name(sandbox_id)].files["/workspace/project/kept"] == b"precious"

"""A pause by the owner interrupts the agents; a pause by a quota or a deadline does not."""

import httpx
import pytest

from shared.clock import now
from shared.models import Conversation, Sandbox
from shared.sandboxes import desired_state
from shared.states import Desired, Reason, Status
from tests.factories import ApiUser, make_conversation, make_sandbox
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.engine import FakeEngine
from tests.worker.scenarios import deliver, row, server_of, set_desired
from worker.context import WorkerContext
from worker.sandboxes.reconciler import reconcile

CONVERSATION_ID = "1" * 32


@pytest.fixture
def server(engine: FakeEngine, sandbox_id: str) -> FakeAgentServer:
    """The sandbox's agent server, with a running agent."""
    server = server_of(engine, sandbox_id)
    server.add(CONVERSATION_ID, execution_status="running")
    return server


def pause(context: WorkerContext, sandbox_id: str, reason: Reason | None = None) -> None:
    with context.database.transaction() as session:
        sandbox = session.get_one(Sandbox, sandbox_id)
        desired_state.set_desired(session, sandbox, Desired.PAUSED, due_at=now(), reason=reason)
    reconcile(context, sandbox_id)


def test_pause_by_its_owner_interrupts_the_agents(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    make_conversation(context.database, user, row(context, Sandbox, sandbox_id), id=CONVERSATION_ID)
    pause(context, sandbox_id)
    assert server.conversations[CONVERSATION_ID].execution_status == "paused"
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.pause_kind, found.reason) == (Status.PAUSED, "FROZEN", None)


@pytest.mark.parametrize("desired", [Desired.PAUSED, Desired.STOPPED])
def test_interrupted_agent_continues_after_the_resume(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer, desired: Desired
) -> None:
    for name, status in (("1", "running"), ("2", "paused"), ("3", "finished")):
        server.add(name * 32, execution_status=status)
        make_conversation(context.database, user, row(context, Sandbox, sandbox_id), id=name * 32, title_settled=True)
    for _ in range(2):
        for state in (desired, Desired.RUNNING):
            set_desired(context, sandbox_id, state)
            reconcile(context, sandbox_id)
            deliver(context)
        found = [server.conversations[name * 32].execution_status for name in "123"]
        assert found == ["running", "paused", "finished"]
    assert not row(context, Conversation, CONVERSATION_ID).awaits_sandbox


def test_agent_that_a_user_has_resumed_gets_no_request(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    make_conversation(context.database, user, row(context, Sandbox, sandbox_id), id=CONVERSATION_ID, title_settled=True)
    pause(context, sandbox_id)
    server.conversations[CONVERSATION_ID].execution_status = "finished"
    set_desired(context, sandbox_id, Desired.RUNNING)
    reconcile(context, sandbox_id)
    deliver(context)
    assert (server.conversations[CONVERSATION_ID].execution_status, server.calls[-1]) == (
        "finished",
        "get_conversation",
    )


def test_conversations_of_other_sandboxes_are_not_continued(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    other = make_conversation(context.database, user, make_sandbox(context.database, user))
    make_conversation(context.database, user, row(context, Sandbox, sandbox_id), id=CONVERSATION_ID, title_settled=True)
    server.add(other.id, execution_status="running")  # as a hostile server reports
    pause(context, sandbox_id)
    assert row(context, Conversation, CONVERSATION_ID).awaits_sandbox
    assert not row(context, Conversation, other.id).awaits_sandbox


def test_pause_by_a_quota_interrupts_no_agent(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    make_conversation(context.database, user, row(context, Sandbox, sandbox_id), id=CONVERSATION_ID)
    pause(context, sandbox_id, Reason.MADE_ROOM)
    assert server.conversations[CONVERSATION_ID].execution_status == "running"
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.pause_kind, found.reason) == (Status.PAUSED, "FROZEN", "made_room")


def test_pause_without_conversations_sends_no_request(
    context: WorkerContext, sandbox_id: str, server: FakeAgentServer
) -> None:
    before = list(server.calls)
    pause(context, sandbox_id)
    assert server.calls == before
    assert row(context, Sandbox, sandbox_id).status == Status.PAUSED


def test_agent_server_that_fails_does_not_block_a_pause(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    make_conversation(context.database, user, row(context, Sandbox, sandbox_id), id=CONVERSATION_ID)
    server.refuse["find_running"] = httpx.Response(500)
    pause(context, sandbox_id)
    assert row(context, Sandbox, sandbox_id).status == Status.PAUSED

"""Polls for titles end although the agent server fails, and continue while only its door does."""

import httpx
import pytest

from shared.agent_server.errors import DoorUnavailable
from shared.clock import now
from shared.models import Conversation, Sandbox
from tests.factories import ApiUser, make_conversation
from tests.fakes.agent_server import FakeAgentServer
from tests.worker.scenarios import assert_at_rest, change, row
from worker.context import WorkerContext
from worker.conversations.refresh import MAX_TITLE_WAIT, refresh_conversation


@pytest.fixture
def conversation(context: WorkerContext, user: ApiUser, sandbox: Sandbox, server: FakeAgentServer) -> Conversation:
    """An untitled conversation."""
    made = make_conversation(context.database, user, sandbox, due_at=now())
    server.add(made.id)
    return made


def refreshed_late(context: WorkerContext, conversation: Conversation) -> Conversation:
    """Refresh the conversation when the wait for its title is over."""
    change(context, Conversation, conversation.id, updated_at=now() - MAX_TITLE_WAIT)
    refresh_conversation(context, conversation.id)
    return row(context, Conversation, conversation.id)


@pytest.mark.parametrize("status", [500, 401])
def test_server_that_fails_is_polled_until_the_timeout(
    context: WorkerContext, conversation: Conversation, server: FakeAgentServer, status: int
) -> None:
    server.refuse = {"get_conversation": httpx.Response(status, json={"detail": "broken"})}
    refresh_conversation(context, conversation.id)
    assert row(context, Conversation, conversation.id).due_at is not None
    found = refreshed_late(context, conversation)
    assert (found.title_settled, found.attempt) == (False, 0)
    assert_at_rest(found)
    assert server.calls == ["get_conversation"] * 2


def test_title_waits_for_a_door_that_is_down(
    context: WorkerContext, conversation: Conversation, server: FakeAgentServer
) -> None:
    def reject(_method: str) -> None:
        raise DoorUnavailable("the node's door does not respond")

    server.before = reject
    assert refreshed_late(context, conversation).due_at is not None
    server.before = lambda _method: None
    server.get(conversation.id).title = "A better one"
    assert refreshed_late(context, conversation).title == "A better one"

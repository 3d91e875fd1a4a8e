"""A deleted conversation that its agent server may still create: the delete is repeated until no create can follow."""

from dataclasses import replace

import httpx
import pytest

from shared.clock import after, now
from shared.conversations import deletion as conversation_deletion
from shared.leasing.limits import MAX_SECONDS
from shared.models import Conversation, Sandbox
from shared.states import Stage
from tests.factories import ApiUser, make_conversation, make_start_task
from tests.fakes.agent_server import FakeAgentServer
from tests.worker.scenarios import change, row
from worker.context import WorkerContext
from worker.conversations.refresh import refresh_conversation


@pytest.fixture
def conversation(context: WorkerContext, user: ApiUser, sandbox: Sandbox) -> Conversation:
    """A deleted conversation whose start has failed; its agent server does not know it."""
    make_conversation(context.database, user, sandbox)  # the sandbox stays
    found = make_conversation(context.database, user, sandbox, title_settled=True)
    with context.database.transaction() as session:
        conversation_deletion.delete_conversation(session, found.id, user.id, due_at=now())
    make_start_task(context.database, user, sandbox, conversation_id=found.id, stage=Stage.ERROR)
    return found


def with_timeout(context: WorkerContext, seconds: float) -> WorkerContext:
    return replace(context, settings=context.settings.model_copy(update={"first_message_timeout_seconds": seconds}))


def assert_gone(context: WorkerContext, conversation: Conversation) -> None:
    with context.database.reading() as session:  # its tombstone is deleted, too
        assert session.get(Conversation, conversation.id) is None


def test_late_create_is_awaited_after_another_server_has_responded(
    context: WorkerContext, conversation: Conversation, server: FakeAgentServer
) -> None:
    context = with_timeout(context, 0.01)
    server.refuse = {"delete_conversation": httpx.Response(401)}
    refresh_conversation(context, conversation.id)
    server.refuse = {}
    refresh_conversation(context, conversation.id)
    assert row(context, Conversation, conversation.id).due_at is not None
    refresh_conversation(context, conversation.id)
    assert_gone(context, conversation)


def test_late_create_is_awaited_for_longer_than_a_row_can_wait(
    context: WorkerContext, conversation: Conversation, server: FakeAgentServer
) -> None:
    context = with_timeout(context, 2.5 * MAX_SECONDS)
    for _ in range(3):
        refresh_conversation(context, conversation.id)
        due_at = row(context, Conversation, conversation.id).due_at
        assert due_at is not None
        assert now() < due_at <= after(MAX_SECONDS)
        change(context, Conversation, conversation.id, due_at=now())
    server.add(conversation.id)
    refresh_conversation(context, conversation.id)
    assert conversation.id not in server.conversations
    assert_gone(context, conversation)

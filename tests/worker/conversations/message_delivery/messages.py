"""Pending messages, and the messages that the agent server has."""

from typing import Any

from sqlmodel import select

from shared.clock import after
from shared.conversations import pending_messages
from shared.models import Conversation, PendingMessage
from tests.factories import ApiUser
from tests.fakes.conversation import FakeConversation
from tests.worker.scenarios import (
    assert_at_rest,
    row,
)
from worker.context import WorkerContext

MAX_POINTS = 80


def content(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text, "cache_prompt": False}]


def add_messages(context: WorkerContext, user: ApiUser, conversation_id: str, *texts: str) -> None:
    """Add messages as the API does, without publishing their jobs."""
    for text in texts:
        with context.database.transaction() as session:
            pending_messages.add(
                session, conversation_id, user.id, content(text), due_at=after(context.shared.republish_seconds)
            )


def pending(context: WorkerContext) -> list[PendingMessage]:
    with context.database.reading() as session:
        return list(session.exec(select(PendingMessage)).all())


def received_texts(fake: FakeConversation) -> list[str]:
    return [message["content"][0]["text"] for message in fake.messages]


def assert_done(context: WorkerContext, conversation_id: str) -> None:
    found = row(context, Conversation, conversation_id)
    assert_at_rest(found)
    assert not found.awaits_sandbox
    assert pending(context) == []

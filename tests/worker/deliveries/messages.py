"""Messages that wait, and what the agent has heard."""

from typing import Any

from sqlmodel import select

from shared.clock import after
from shared.models import Conversation, PendingMessage
from shared.store import pending_messages
from tests.factories import Person
from tests.fakes.conversation import FakeConversation
from tests.worker.scenes import (
    assert_at_rest,
    row,
)
from worker.parts import Parts

MOST_POINTS = 80


def content(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text, "cache_prompt": False}]


def say(parts: Parts, user: Person, conversation_id: str, *texts: str) -> None:
    """As the API does; the jobs are lost."""
    for text in texts:
        with parts.database.transaction() as session:
            pending_messages.add(
                session, conversation_id, user.id, content(text), due_at=after(parts.shared.republish_seconds)
            )


def pending(parts: Parts) -> list[PendingMessage]:
    with parts.database.reading() as session:
        return list(session.exec(select(PendingMessage)).all())


def said(talk: FakeConversation) -> list[str]:
    return [message["content"][0]["text"] for message in talk.messages]


def assert_done(parts: Parts, conversation_id: str) -> None:
    found = row(parts, Conversation, conversation_id)
    assert_at_rest(found)
    assert not found.awaits_sandbox
    assert pending(parts) == []

"""Deletes and pending messages that wait for another transaction's lock on their conversation."""

from functools import partial
from typing import Any

import pytest
from sqlmodel import Session, select

from shared.changes import recorder as change_recorder
from shared.changes.recorder import Usage
from shared.clock import now
from shared.conversations import deletion, pending_messages, start_tasks
from shared.conversations import queries as conversation_queries
from shared.db.database import Database
from shared.errors import NotFound
from shared.models import Conversation, PendingMessage, Sandbox, StartTask
from shared.queue.jobs import Job
from shared.states import Stage
from tests.factories import ApiUser, make_conversation, make_start_task
from tests.interleaving import overlap

CONTENT: list[dict[str, Any]] = [{"type": "text", "text": "Hello"}]


def delete(conversation: Conversation, session: Session) -> list[Job]:
    return deletion.delete_conversation(session, conversation.id, conversation.owner_id, due_at=now())


def send(conversation: Conversation, session: Session) -> int:
    owner_id = conversation.owner_id
    return pending_messages.add(session, conversation.id, owner_id, CONTENT, due_at=now()).position


def make_ready(task: StartTask, session: Session) -> None:
    start_tasks.advance(session, task, Stage.READY)
    conversation_queries.publish(session, task.conversation_id)


def test_conversation_that_is_deleted_twice_at_once_is_counted_once(
    database: Database, user: ApiUser, conversation: Conversation
) -> None:
    with database.transaction() as session:
        change_recorder.record_usage(session, user.id, Usage(conversations=3))
    overlap(database, partial(delete, conversation), partial(delete, conversation))
    with database.reading() as session:
        assert change_recorder.read_usage(session, user.id).conversations == 2


def test_message_at_the_moment_of_ready_is_accepted(database: Database, user: ApiUser, sandbox: Sandbox) -> None:
    task = make_start_task(database, user, sandbox, stage=Stage.STARTING_CONVERSATION)
    conversation = make_conversation(database, user, sandbox, id=task.conversation_id, listed=False)
    _, position = overlap(database, partial(make_ready, task), partial(send, conversation))
    assert position == 1


def test_message_during_a_delete_is_refused(
    database: Database, user: ApiUser, sandbox: Sandbox, conversation: Conversation
) -> None:
    make_conversation(database, user, sandbox)  # so that the sandbox stays
    with pytest.raises(NotFound):
        overlap(database, partial(delete, conversation), partial(send, conversation))
    with database.reading() as session:
        assert session.exec(select(PendingMessage)).all() == []

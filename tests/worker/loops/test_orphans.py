"""Starts of sub-conversations in another sandbox that overlap with the deletion of their parent."""

from functools import partial

import pytest

from shared.clock import after, now
from shared.conversations import deletion as conversation_deletion
from shared.conversations import queries as conversation_queries
from shared.models import Conversation, Sandbox
from shared.queue.jobs import DeleteConversation
from shared.states import Desired, Reason, Status
from tests.factories import NODE_ID, ApiUser, make_conversation
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.engine import FakeEngine
from tests.interleaving import overlap
from tests.worker.scenarios import (
    assert_failed,
    change,
    configure,
    deliver,
    request_start,
    row,
    running,
    server_of,
    task_of,
)
from worker.context import WorkerContext
from worker.conversations.refresh import refresh_conversation
from worker.conversations.start import start_conversation


@pytest.fixture
def parent(context: WorkerContext, user: ApiUser) -> Conversation:
    configure(context, user)
    sandbox = row(context, Sandbox, running(context, user))
    return make_conversation(context.database, user, sandbox, title_settled=True)


@pytest.fixture
def other_sandbox(context: WorkerContext, user: ApiUser) -> str:
    """Another sandbox, which the deletion of the parent does not lock."""
    return running(context, user)


@pytest.fixture
def server(engine: FakeEngine, other_sandbox: str) -> FakeAgentServer:
    return server_of(engine, other_sandbox)


def test_start_that_the_deletion_missed_is_cancelled(
    context: WorkerContext, user: ApiUser, parent: Conversation, other_sandbox: str, server: FakeAgentServer
) -> None:
    task_id = request_start(context, user, other_sandbox, parent_conversation_id=parent.id)
    change(context, Conversation, parent.id, listed=False, deleted_at=now())
    start_conversation(context, task_id)
    assert_failed(context, task_id, Reason.CANCELLED)
    deliver(context)
    assert task_of(context, task_id).conversation_id not in server.conversations
    assert row(context, Sandbox, other_sandbox).desired == Desired.RUNNING


def test_orphan_that_became_ready_during_the_deletion_is_deleted(
    context: WorkerContext, user: ApiUser, parent: Conversation, other_sandbox: str
) -> None:
    change(context, Sandbox, other_sandbox, goes_with_conversations=True)
    with context.database.transaction() as session:
        conversation_deletion.delete_conversation(
            session, parent.id, user.id, due_at=after(context.shared.republish_seconds)
        )
    late = make_conversation(context.database, user, row(context, Sandbox, other_sandbox), parent_id=parent.id)
    refresh_conversation(context, parent.id)
    assert not row(context, Conversation, late.id).listed
    assert DeleteConversation(late.id, NODE_ID) in context.publisher.jobs  # type: ignore[attr-defined]
    deliver(context)
    assert row(context, Sandbox, other_sandbox).status == Status.DELETED


def test_completion_of_a_start_waits_for_the_deletion(
    context: WorkerContext, user: ApiUser, parent: Conversation
) -> None:
    delete = partial(
        conversation_deletion.delete_conversation, conversation_id=parent.id, owner_id=user.id, due_at=after(60)
    )
    _, is_deleted = overlap(
        context.database, delete, partial(conversation_queries.is_deleted, conversation_id=parent.id)
    )
    assert is_deleted


def test_deletion_waits_for_the_completion_of_a_start(
    context: WorkerContext, user: ApiUser, parent: Conversation
) -> None:
    delete = partial(
        conversation_deletion.delete_conversation, conversation_id=parent.id, owner_id=user.id, due_at=after(60)
    )
    is_deleted, jobs = overlap(
        context.database, partial(conversation_queries.is_deleted, conversation_id=parent.id), delete
    )
    assert not is_deleted
    assert DeleteConversation(parent.id, NODE_ID) in jobs

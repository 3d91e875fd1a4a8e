"""Sub-conversations whose start, in a sandbox elsewhere, meets the deletion of the one above them."""

from functools import partial

import pytest

from shared.clock import after, now
from shared.jobs import DeleteConversation
from shared.models import Conversation, Sandbox
from shared.states import Desired, Reason, Status
from shared.store import conversations, deletions
from tests.factories import NODE_ID, Person, make_conversation
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.engine import FakeEngine
from tests.interleaving import overlap
from tests.worker.scenes import ask, assert_failed, change, configure, deliver, row, running, server_of, task_of
from worker.parts import Parts
from worker.refresh import refresh_conversation
from worker.starts import start_conversation


@pytest.fixture
def parent(parts: Parts, user: Person) -> Conversation:
    configure(parts, user)
    sandbox = row(parts, Sandbox, running(parts, user))
    return make_conversation(parts.database, user, sandbox, title_settled=True)


@pytest.fixture
def elsewhere(parts: Parts, user: Person) -> str:
    """Another sandbox, which a deletion of the parent does not lock."""
    return running(parts, user)


@pytest.fixture
def server(engine: FakeEngine, elsewhere: str) -> FakeAgentServer:
    return server_of(engine, elsewhere)


def test_a_start_that_the_deletion_did_not_see(
    parts: Parts, user: Person, parent: Conversation, elsewhere: str, server: FakeAgentServer
) -> None:
    task_id = ask(parts, user, elsewhere, parent_conversation_id=parent.id)
    change(parts, Conversation, parent.id, listed=False, deleted_at=now())
    start_conversation(parts, task_id)
    assert_failed(parts, task_id, Reason.CANCELLED)
    deliver(parts)
    assert task_of(parts, task_id).conversation_id not in server.conversations
    assert row(parts, Sandbox, elsewhere).desired == Desired.RUNNING


def test_orphan_that_became_ready_meanwhile_is_deleted_after_it(
    parts: Parts, user: Person, parent: Conversation, elsewhere: str
) -> None:
    change(parts, Sandbox, elsewhere, goes_with_conversations=True)
    with parts.database.transaction() as session:
        deletions.delete_conversation(session, parent.id, user.id, due_at=after(parts.shared.republish_seconds))
    late = make_conversation(parts.database, user, row(parts, Sandbox, elsewhere), parent_id=parent.id)
    refresh_conversation(parts, parent.id)
    assert not row(parts, Conversation, late.id).listed
    assert DeleteConversation(late.id, NODE_ID) in parts.publisher.jobs  # type: ignore[attr-defined]
    deliver(parts)
    assert row(parts, Sandbox, elsewhere).status == Status.DELETED


def test_the_end_of_a_start_waits_for_the_deletion(parts: Parts, user: Person, parent: Conversation) -> None:
    delete = partial(deletions.delete_conversation, conversation_id=parent.id, owner_id=user.id, due_at=after(60))
    _, is_deleted = overlap(parts.database, delete, partial(conversations.is_deleted, conversation_id=parent.id))
    assert is_deleted


def test_the_deletion_waits_for_the_end_of_a_start(parts: Parts, user: Person, parent: Conversation) -> None:
    delete = partial(deletions.delete_conversation, conversation_id=parent.id, owner_id=user.id, due_at=after(60))
    is_deleted, jobs = overlap(parts.database, partial(conversations.is_deleted, conversation_id=parent.id), delete)
    assert not is_deleted
    assert DeleteConversation(parent.id, NODE_ID) in jobs

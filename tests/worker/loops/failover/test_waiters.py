"""Deleted conversations whose sandbox was on a lost node: another worker ends their deletion."""

from datetime import timedelta

from sqlmodel import select

from shared.clock import now
from shared.conversations import deletion as conversation_deletion
from shared.models import Conversation, Event, Node
from shared.states import Status
from tests.factories import NODE_ID, Person, make_conversation, make_event, make_sandbox
from tests.worker.loops.failover.nodes import lose, tombstone
from tests.worker.scenes import assert_at_rest, change, deliver, row
from worker.context import WorkerContext
from worker.loops.sweep import sweep


def test_conversation_of_a_deleted_sandbox_is_deleted_after_its_node_was_forgotten(
    other: WorkerContext, user: Person
) -> None:
    sandbox = make_sandbox(other.database, user, status=Status.DELETED)
    conversation = make_conversation(other.database, user, sandbox)
    make_event(other.database, conversation)
    lose(other)
    change(other, Node, NODE_ID, heartbeat_at=now() - timedelta(minutes=1))
    tombstone(other)
    with other.database.transaction() as session:
        conversation_deletion.delete_conversation(session, conversation.id, user.id, due_at=now())
    change(other, Conversation, conversation.id, due_at=now())  # the job is in the queue of the node
    sweep(other)
    deliver(other)
    found = row(other, Conversation, conversation.id)
    assert_at_rest(found)
    assert not found.awaits_sandbox
    with other.database.reading() as session:
        assert session.exec(select(Event)).all() == []

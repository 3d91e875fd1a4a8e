"""Start tasks and deleted conversations whose sandbox was on a lost node: another worker ends them."""

from datetime import timedelta

from sqlmodel import select

from shared.clock import now
from shared.conversations import deletion as conversation_deletion
from shared.models import Conversation, Event, Node, Sandbox
from shared.states import Desired, Reason, Stage, Status
from tests.factories import NODE_ID, ApiUser, make_conversation, make_event, make_sandbox, make_start_task
from tests.worker.loops.failover.nodes import lose, tombstone
from tests.worker.scenarios import assert_at_rest, assert_failed, change, deliver, row
from worker.context import WorkerContext
from worker.loops.sweep import sweep


def test_start_in_a_sandbox_that_is_to_be_deleted_fails(other_worker: WorkerContext, user: ApiUser) -> None:
    """Its owner deleted the sandbox just before the node was marked lost."""
    sandbox = make_sandbox(other_worker.database, user, status=Status.STARTING, desired=Desired.DELETED, generation=2)
    task = make_start_task(other_worker.database, user, sandbox, stage=Stage.WAITING_FOR_SANDBOX, due_at=None)
    lose(other_worker)
    deliver(other_worker)
    assert_failed(other_worker, task.id, Reason.SANDBOX_DELETED)
    assert row(other_worker, Sandbox, sandbox.id).status == Status.STARTING  # its container is not known to be removed


def test_conversation_of_a_deleted_sandbox_is_deleted_after_its_node_was_forgotten(
    other_worker: WorkerContext, user: ApiUser
) -> None:
    sandbox = make_sandbox(other_worker.database, user, status=Status.DELETED)
    conversation = make_conversation(other_worker.database, user, sandbox)
    make_event(other_worker.database, conversation)
    lose(other_worker)
    change(other_worker, Node, NODE_ID, heartbeat_at=now() - timedelta(minutes=1))
    tombstone(other_worker)
    with other_worker.database.transaction() as session:
        conversation_deletion.delete_conversation(session, conversation.id, user.id, due_at=now())
    change(other_worker, Conversation, conversation.id, due_at=now())  # the job is in the queue of the node
    sweep(other_worker)
    deliver(other_worker)
    found = row(other_worker, Conversation, conversation.id)
    assert_at_rest(found)
    assert not found.awaits_sandbox
    with other_worker.database.reading() as session:
        assert session.exec(select(Event)).all() == []

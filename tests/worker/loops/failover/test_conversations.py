"""Conversations whose agents ran on a lost node are in error once their sandbox is recreated on another node."""

from datetime import timedelta

from sqlmodel import col, select

from shared.clock import now
from shared.models import ChangeEntry, Conversation, Sandbox
from shared.sandboxes import deadlines
from shared.sandboxes.due_deadlines import apply_deadline, overdue
from shared.states import Desired
from tests.factories import ApiUser, make_conversation
from tests.worker.loops.failover.nodes import lose
from tests.worker.scenarios import change, deliver, row, running, set_desired
from worker.context import WorkerContext

BEGAN = now() - timedelta(minutes=5)


def make(context: WorkerContext, user: ApiUser, status: str) -> Conversation:
    sandbox = row(context, Sandbox, running(context, user))
    return make_conversation(
        context.database, user, sandbox, execution_status=status, execution_status_at=BEGAN, updated_at=BEGAN
    )


def move(other_worker: WorkerContext, conversation: Conversation) -> Conversation:
    """Lose the node, resume the sandbox elsewhere, and return the conversation's row."""
    lose(other_worker)
    assert row(other_worker, Conversation, conversation.id) == conversation, "it continues if the node is back"
    set_desired(other_worker, conversation.sandbox_id, Desired.RUNNING)
    lose(other_worker)
    deliver(other_worker)
    return row(other_worker, Conversation, conversation.id)


def test_running_agent_is_in_error_after_the_move(
    context: WorkerContext, other_worker: WorkerContext, user: ApiUser
) -> None:
    conversation = make(context, user, "running")
    found = move(other_worker, conversation)
    assert (found.execution_status, found.execution_reason) == ("error", "node_lost")
    assert "node that was lost" in (found.execution_detail or "")
    assert found.execution_status_at is not None
    assert found.execution_status_at > BEGAN
    assert found.updated_at > BEGAN
    with other_worker.database.reading() as session:
        entries = select(ChangeEntry.status).where(ChangeEntry.row_id == conversation.id)
        assert list(session.exec(entries.order_by(col(ChangeEntry.number)))) == ["error"]


def test_idle_sandbox_is_paused_after_the_move(
    context: WorkerContext, other_worker: WorkerContext, user: ApiUser
) -> None:
    conversation = make(context, user, "running")
    move(other_worker, conversation)
    with other_worker.database.transaction() as session:
        sandbox = session.get_one(Sandbox, conversation.sandbox_id)
        deadlines.set_own(session, sandbox, {"freeze_after_seconds": 60})
    change(other_worker, Sandbox, conversation.sandbox_id, deadline_at=BEGAN, deadline_does="freeze")
    with other_worker.database.transaction() as session:
        [deadline] = overdue(session, "node-b")
        assert apply_deadline(session, deadline, due_at=now())
    assert row(other_worker, Sandbox, conversation.sandbox_id).desired == Desired.PAUSED


def test_agent_that_did_not_run_is_unchanged(
    context: WorkerContext, other_worker: WorkerContext, user: ApiUser
) -> None:
    conversation = make(context, user, "finished")
    assert move(other_worker, conversation) == conversation

"""Sub-conversations whose starts succeed while their parent is being deleted are deleted, too."""

from shared.clock import now
from shared.conversations import deletion
from shared.models import Conversation, Sandbox
from shared.queue.jobs import DeleteConversation
from tests.doubles import RecordingPublisher
from tests.factories import NODE_ID, ApiUser, make_conversation
from tests.worker.scenarios import row
from worker.context import WorkerContext
from worker.conversations.refresh import refresh_conversation


def test_late_child_is_deleted_and_its_job_published(
    context: WorkerContext, publisher: RecordingPublisher, user: ApiUser, sandbox_id: str
) -> None:
    sandbox = row(context, Sandbox, sandbox_id)
    parent, sibling = (make_conversation(context.database, user, sandbox) for _ in range(2))
    with context.database.transaction() as session:
        deletion.delete_conversation(session, parent.id, user.id, due_at=now())
    child = make_conversation(context.database, user, sandbox, parent_id=parent.id)
    publisher.jobs.clear()
    refresh_conversation(context, parent.id)
    listed = [row(context, Conversation, found.id).listed for found in (parent, child, sibling)]
    assert listed == [False, False, True]
    assert publisher.jobs == [DeleteConversation(child.id, NODE_ID)]

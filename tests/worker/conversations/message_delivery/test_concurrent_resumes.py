"""Messages that arrive while a worker writes that the sandbox runs."""

from sqlmodel import Session

from shared.clock import now
from shared.leasing import waiters
from shared.models import Conversation, Sandbox
from shared.sandboxes import status as sandbox_status
from shared.sandboxes.status import ObservedState
from shared.states import Desired, Status
from tests.factories import ApiUser
from tests.fakes.conversation import FakeConversation
from tests.fakes.engine import FakeEngine
from tests.interleaving import overlap_call
from tests.worker.conversations.message_delivery.messages import add_messages, assert_done, received_texts
from tests.worker.scenarios import row, set_desired
from worker.context import WorkerContext
from worker.conversations.refresh import refresh_conversation
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile


def test_message_at_the_moment_of_a_resume_is_delivered(
    context: WorkerContext,
    engine: FakeEngine,
    user: ApiUser,
    sandbox: Sandbox,
    conversation: Conversation,
    fake: FakeConversation,
) -> None:
    """The worker that writes RUNNING looks for waiters before the message is committed."""
    urls = sandbox.exposed_urls
    set_desired(context, sandbox.id, Desired.PAUSED)
    reconcile(context, sandbox.id)
    set_desired(context, sandbox.id, Desired.RUNNING)
    engine.unpause(container_name(sandbox.id))
    resumed = row(context, Sandbox, sandbox.id)

    def resume(session: Session) -> None:
        state = ObservedState(Status.RUNNING, exposed_urls=urls)
        sandbox_status.set_status(session, resumed, state, observed_generation=resumed.generation)
        assert not any(waiters.enqueue_waiters(session, sandbox.id, now()))

    def say_and_deliver() -> None:
        add_messages(context, user, conversation.id, "one")
        refresh_conversation(context, conversation.id)

    overlap_call(context.database, resume, say_and_deliver)
    assert received_texts(fake) == ["one"]
    assert_done(context, conversation.id)

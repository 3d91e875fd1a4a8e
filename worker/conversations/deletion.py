"""The end of a conversation: its events are removed, and its agent server forgets it, as soon as that runs."""

import structlog

from shared.clock import after
from shared.conversations import deletion as conversation_deletion
from shared.conversations import queries as conversation_queries
from shared.conversations import start_tasks
from shared.models import Conversation, Sandbox
from shared.states import Desired, Status
from worker.agent_server.errors import AgentServerRefused
from worker.context import WorkerContext
from worker.lease_runner import Retry

log = structlog.get_logger()


def delete_from_agent_server(context: WorkerContext, conversation: Conversation) -> None:
    """Bring the deletion of a conversation as far as it goes now: what is left is done when its sandbox runs.

    Raises:
        Retry: its agent server may know the conversation only later.
        AgentServerUnreachable: nothing answers there.
        WrongServer: something else answers there.
    """
    _remove_events(context, conversation)
    _delete_children(context, conversation)
    if _is_forgotten(context, conversation):
        with context.database.transaction() as session:
            conversation_deletion.finish_deletion(session, conversation)
        log.info("conversation_forgotten", conversation=conversation.id)


def _remove_events(context: WorkerContext, conversation: Conversation) -> None:
    more = True
    while more:
        context.renewer.mark_progress(Conversation, conversation)
        with context.database.transaction() as session:
            more = conversation_deletion.remove_events(session, conversation.id)


def _delete_children(context: WorkerContext, conversation: Conversation) -> None:
    """Those whose start succeeded just as it was deleted: later ones don't begin (`conversations.is_deleted`)."""
    owner_id = conversation.owner_id
    with context.database.reading() as session:
        children = conversation_queries.children(session, [conversation.id], owner_id).get(conversation.id, [])
    for child_id in children:
        with context.database.transaction() as session:
            due_at = after(context.shared.republish_seconds)
            jobs = conversation_deletion.delete_conversation(session, child_id, owner_id, due_at=due_at)
        for job in jobs:
            context.publisher.publish(job)


def _is_forgotten(context: WorkerContext, conversation: Conversation) -> bool:
    """Whether nothing is left of it in its sandbox, or that is to go too."""
    with context.database.reading() as session:
        sandbox = session.get(Sandbox, conversation.sandbox_id)
    if sandbox is None or sandbox.desired == Desired.DELETED:
        return True
    server = context.agent_server(sandbox) if sandbox.status == Status.RUNNING else None
    if server is None:
        return False
    try:
        known = server.delete_conversation(conversation.id)
    except AgentServerRefused as error:  # it would refuse again
        log.warning("not_forgotten", conversation=conversation.id, status=error.status)
        return True
    if not known:
        _await_late_one(context, conversation)
    return True


def _await_late_one(context: WorkerContext, conversation: Conversation) -> None:
    """Look twice: the server may be at a create whose start was given up while it was frozen (decision 40).

    Raises:
        Retry: it may be.
    """
    with context.database.reading() as session:
        begun = start_tasks.find_for_conversation(session, conversation.id) is not None
    seconds = context.settings.first_message_timeout_seconds
    if begun and conversation.attempt == 0 and seconds > 0:
        raise Retry("it may be made yet", seconds=seconds)

"""The end of a conversation: its events are removed, and its agent server forgets it, as soon as that runs."""

import structlog

from shared.clock import after
from shared.models import Conversation, Sandbox
from shared.states import Desired, Status
from shared.store import conversations, deletions, start_tasks
from worker.agent_server_errors import AgentServerRefused
from worker.parts import Parts
from worker.turns import TryAgain

log = structlog.get_logger()


def forget(parts: Parts, conversation: Conversation) -> None:
    """Bring the deletion of a conversation as far as it goes now: what is left is done when its sandbox runs.

    Raises:
        TryAgain: its agent server may know the conversation only later.
        AgentServerUnreachable: nothing answers there.
        WrongServer: something else answers there.
    """
    _remove_events(parts, conversation)
    _delete_children(parts, conversation)
    if _is_forgotten(parts, conversation):
        with parts.database.transaction() as session:
            deletions.conclude(session, conversation)
        log.info("conversation_forgotten", conversation=conversation.id)


def _remove_events(parts: Parts, conversation: Conversation) -> None:
    more = True
    while more:
        parts.keeper.mark_progress(Conversation, conversation)
        with parts.database.transaction() as session:
            more = deletions.remove_events(session, conversation.id)


def _delete_children(parts: Parts, conversation: Conversation) -> None:
    """Those whose start succeeded just as it was deleted: later ones don't begin (`conversations.is_deleted`)."""
    owner_id = conversation.owner_id
    with parts.database.reading() as session:
        children = conversations.children(session, [conversation.id], owner_id).get(conversation.id, [])
    for child_id in children:
        with parts.database.transaction() as session:
            due_at = after(parts.shared.republish_seconds)
            jobs = deletions.delete_conversation(session, child_id, owner_id, due_at=due_at)
        for job in jobs:
            parts.publisher.publish(job)


def _is_forgotten(parts: Parts, conversation: Conversation) -> bool:
    """Whether nothing is left of it in its sandbox, or that is to go too."""
    with parts.database.reading() as session:
        sandbox = session.get(Sandbox, conversation.sandbox_id)
    if sandbox is None or sandbox.desired == Desired.DELETED:
        return True
    server = parts.agent_server(sandbox) if sandbox.status == Status.RUNNING else None
    if server is None:
        return False
    try:
        known = server.delete_conversation(conversation.id)
    except AgentServerRefused as error:  # it would refuse again
        log.warning("not_forgotten", conversation=conversation.id, status=error.status)
        return True
    if not known:
        _await_late_one(parts, conversation)
    return True


def _await_late_one(parts: Parts, conversation: Conversation) -> None:
    """Look twice: the server may be at a create whose start was given up while it was frozen (decision 40).

    Raises:
        TryAgain: it may be.
    """
    with parts.database.reading() as session:
        begun = start_tasks.find_for_conversation(session, conversation.id) is not None
    seconds = parts.settings.first_message_seconds
    if begun and conversation.attempt == 0 and seconds > 0:
        raise TryAgain("it may be made yet", seconds=seconds)

"""The deletion of a conversation: its events now, and its copy on the agent server as soon as the sandbox runs."""

import time

import structlog

from shared.agent_server.errors import AgentServerRefused
from shared.clock import after
from shared.conversations import deletion as conversation_deletion
from shared.conversations import start_tasks
from shared.leasing.limits import MAX_SECONDS
from shared.models import Conversation, Sandbox
from shared.queue.jobs import Job
from shared.states import Desired, Status
from worker.context import WorkerContext
from worker.lease_runner import Retry

log = structlog.get_logger()


def delete_from_agent_server(context: WorkerContext, conversation: Conversation) -> None:
    """Delete as much of a conversation as is possible now; the rest is deleted when its sandbox runs.

    Raises:
        Retry: its agent server may create the conversation later.
        AgentServerUnreachable: its agent server does not respond.
        WrongServer: another server responds at its URL.
    """
    _remove_events(context, conversation)
    _delete_children(context, conversation)
    if _is_deleted_in_sandbox(context, conversation):
        with context.database.transaction() as session:
            conversation_deletion.finish_deletion(session, conversation)
        log.info("conversation_deleted", conversation=conversation.id)


def _remove_events(context: WorkerContext, conversation: Conversation) -> None:
    """Remove all events, in transactions of a limited size, with a pause as long as each transaction.

    SQLite's writers look for its lock now and then. Without pauses, those of other users would mostly find it taken.
    """
    more = True
    while more:
        context.renewer.mark_progress(Conversation, conversation)
        began = time.monotonic()
        with context.database.transaction() as session:
            more = conversation_deletion.remove_events(session, conversation.id, conversation.owner_id)
        if more:
            time.sleep(time.monotonic() - began)


def _delete_children(context: WorkerContext, conversation: Conversation) -> None:
    """Delete the children that are left, in transactions of a limited size.

    They were too many for the request, or their start succeeded during the deletion; later starts fail (`_check_parent`
    in a start).
    """
    while jobs := _delete_some_children(context, conversation):
        for job in jobs:
            context.publisher.publish(job)


def _delete_some_children(context: WorkerContext, conversation: Conversation) -> list[Job]:
    context.renewer.mark_progress(Conversation, conversation)
    due_at = after(context.shared.republish_seconds)
    with context.database.transaction() as session:
        return conversation_deletion.delete_children(session, [conversation.id], conversation.owner_id, due_at=due_at)


def _is_deleted_in_sandbox(context: WorkerContext, conversation: Conversation) -> bool:
    """Delete the agent server's copy if the sandbox runs. True: no copy is left, or the sandbox is deleted too."""
    with context.database.reading() as session:
        sandbox = session.get(Sandbox, conversation.sandbox_id)
    if sandbox is None or sandbox.desired == Desired.DELETED:
        return True
    if sandbox.status != Status.RUNNING:
        return False
    # No text of an error is shown: the secrets of the start request are deleted here, so they can't be removed from a
    # text, and the server may still know them.
    server = context.agent_server(sandbox, redact=lambda _text: "")
    if server is None:
        return False
    try:
        known = server.delete_conversation(conversation.id)
    except AgentServerRefused as error:  # it would refuse every retry
        log.warning("conversation_not_deleted", conversation=conversation.id, status=error.status)
        return True
    if not known:
        _require_no_late_create(context, conversation)
    return True


def _require_no_late_create(context: WorkerContext, conversation: Conversation) -> None:
    """Have the delete sent again later: the server may still execute a create whose start timed out (decision 40).

    The server was paused during that start. The last delete is sent `first_message_timeout_seconds` after the first.
    """
    with context.database.reading() as session:
        begun = start_tasks.find_for_conversation(session, conversation.id) is not None
    # Each retry waits for `MAX_SECONDS` at most.
    left = context.settings.first_message_timeout_seconds - conversation.attempt * MAX_SECONDS
    if begun and left > 0:
        raise Retry("the agent server may create it later", seconds=left)

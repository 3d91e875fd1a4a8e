"""Telling an agent what was said while it could not be told: in order, and each message once; and letting it go on.

The agent server takes a message without a name of ours, so that it can't be asked for it. Before a message is sent, the
newest one of a user that is there is written down: after a worker that died, or an answer that never came, ours is
there if one with its content follows that.
"""

import time
from typing import Any

import structlog

from shared.conversations import pending_messages
from shared.models import Conversation, PendingMessage
from worker.agent_server.client import AgentServer
from worker.agent_server.errors import AgentServerRefused
from worker.context import WorkerContext

log = structlog.get_logger()

# What was sent by a worker that is dead, or before the sandbox was frozen, may be taken as late as that.
LATE_SECONDS = 1.0


def deliver(context: WorkerContext, conversation: Conversation, server: AgentServer) -> None:
    """Deliver all that waits, or let the agent go on, under the lease that the caller holds.

    Raises:
        AgentServerUnreachable: nothing answers there, or not now.
        WrongServer: something else answers there.
        LeaseLost: another worker delivers by now.
    """
    if _find_next(context, conversation) is None:
        _go_on(conversation, server)  # with a message it does so by itself
    while (message := _find_next(context, conversation)) is not None:
        _deliver(context, conversation, server, message)
    with context.database.transaction() as session:
        pending_messages.finish_delivery(session, conversation)


def _go_on(conversation: Conversation, server: AgentServer) -> None:
    """Let an agent go on that a pause of its sandbox has interrupted, unless somebody has let it already."""
    try:
        known = server.get_conversation(conversation.id)
        if known is not None and known.get("execution_status") == "paused":
            server.run(conversation.id)
            log.info("continued", conversation=conversation.id)
    except AgentServerRefused as error:
        log.warning("not_continued", conversation=conversation.id, status=error.status)


def _find_next(context: WorkerContext, conversation: Conversation) -> PendingMessage | None:
    with context.database.reading() as session:
        return pending_messages.find_next(session, conversation.id)


def _deliver(context: WorkerContext, conversation: Conversation, server: AgentServer, message: PendingMessage) -> None:
    try:
        _give(context, conversation, server, message)
    except AgentServerRefused as error:
        log.warning("message_refused", conversation=conversation.id, message=message.id, status=error.status)
        with context.database.transaction() as session:
            pending_messages.mark_refused(session, conversation, message, str(error))
        return
    with context.database.transaction() as session:
        pending_messages.remove(session, conversation, message)
    log.info("message_delivered", conversation=conversation.id, message=message.id)


def _give(context: WorkerContext, conversation: Conversation, server: AgentServer, message: PendingMessage) -> None:
    if message.attempted_at is None:
        newest = next((said.id for said in server.list_messages(conversation.id)), None)
        with context.database.transaction() as session:
            pending_messages.mark_attempt(session, conversation, message, newest)
    elif _is_there(server, message) or _is_there_late(server, message):
        server.run(conversation.id)  # it may have been taken without that
        return
    server.send_message(conversation.id, {"role": "user", "content": message.content, "run": True})


def _is_there_late(server: AgentServer, message: PendingMessage) -> bool:
    time.sleep(LATE_SECONDS)
    return _is_there(server, message)


def _is_there(server: AgentServer, message: PendingMessage) -> bool:
    for said in server.list_messages(message.conversation_id):
        if said.id == message.newest_before:
            return False
        if _parts_of(said.llm_message.content) == _parts_of(message.content):
            return True
    return False


def _parts_of(content: list[dict[str, Any]]) -> list[Any]:
    """What is said, without what servers add to it."""
    return [part.get("image_urls") or part.get("text") for part in content]

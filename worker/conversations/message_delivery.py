"""Delivery of pending messages to an agent, in order and without duplicates; and the resume of interrupted agents.

The agent server accepts no message id, so a worker can't query whether it has a message. Before a worker sends a
message, it stores the id of the newest user message on the server. If the worker dies, or the response is lost, the
message was delivered if a message with its content follows the stored one. A message that is larger than any pending
one ends the search: a message behind it is delivered a second time.

While a tool of the agent runs, for hours perhaps, the server does not respond to a message. It takes the message when
the tool has ended, even if the sender has given up. So no message is sent during that time, and none is sent again.

Nor does the server respond while it condenses the conversation, which no event shows. So before a message is sent
again, the server must have responded to a request that waits behind the first one.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import structlog

from shared.agent_server.errors import AgentServerRefused, ResponseTooLarge
from shared.agent_server.responses import MessageEvent
from shared.conversations import events, pending_messages
from shared.conversations.webhook_reports import has_running_tool
from shared.models import Conversation, PendingMessage
from worker.agent_server.client import AgentServer
from worker.context import WorkerContext
from worker.conversations.agent_status import fetch_status
from worker.lease_runner import Retry

log = structlog.get_logger()

# Seconds between two checks whether the agent's tools have ended.
BUSY_SECONDS = 2.0
# Time in which the server may still take a message that was sent by a dead worker, or before the sandbox was paused.
LATE_SECONDS = 1.0


def deliver(context: WorkerContext, conversation: Conversation, server: AgentServer) -> None:
    """Deliver all pending messages, or resume the agent, under the lease that the caller holds.

    Raises:
        AgentServerUnreachable: the agent server does not respond, or has a temporary error.
        WrongServer: another server responds at its URL.
        Retry: a tool of the agent runs.
        LeaseLost: another worker owns the conversation now.
    """
    if _find_next(context, conversation) is None:
        _resume_agent(conversation, server)  # a message resumes it by itself
    while (message := _find_next(context, conversation)) is not None:
        _deliver(context, conversation, server, message)
    with context.database.transaction() as session:
        pending_messages.finish_delivery(session, conversation)


def _resume_agent(conversation: Conversation, server: AgentServer) -> None:
    """Resume an agent that a pause of its sandbox has interrupted, unless a user has resumed it already."""
    try:
        # A stored status may be from before the pause. The server refuses to run an agent that runs already.
        if fetch_status(conversation, server) in ("paused", "running") and server.run(conversation.id):
            log.info("continued", conversation=conversation.id)
    except AgentServerRefused as error:
        log.warning("not_continued", conversation=conversation.id, status=error.status)


def _find_next(context: WorkerContext, conversation: Conversation) -> PendingMessage | None:
    with context.database.reading() as session:
        return pending_messages.find_next(session, conversation.id)


def _deliver(context: WorkerContext, conversation: Conversation, server: AgentServer, message: PendingMessage) -> None:
    try:
        _send(context, conversation, server, message)
    except AgentServerRefused as error:
        log.warning("message_refused", conversation=conversation.id, message=message.id, status=error.status)
        with context.database.transaction() as session:
            pending_messages.mark_refused(session, conversation, message, str(error))
        return
    with context.database.transaction() as session:
        pending_messages.remove(session, conversation, message)
    log.info("message_delivered", conversation=conversation.id, message=message.id)


def _send(context: WorkerContext, conversation: Conversation, server: AgentServer, message: PendingMessage) -> None:
    if message.attempted_at is not None and _is_delivered(server, message):
        server.run(conversation.id)  # the server may have taken the message without running the agent
        return
    _require_no_tool(context, conversation, server)
    if message.attempted_at is None:
        newest = next((found.id for found in _list_messages(server, conversation.id)), None)
        with context.database.transaction() as session:
            pending_messages.mark_attempt(session, conversation, message, newest)
    elif _is_delivered_late(server, message):
        server.run(conversation.id)
        return
    server.send_message(conversation.id, {"role": "user", "content": message.content, "run": True})


def _require_no_tool(context: WorkerContext, conversation: Conversation, server: AgentServer) -> None:
    """Check that no tool of the agent runs, by the stored events and, in case the last ones are lost, by the server."""
    with context.database.reading() as session:
        newest = events.newest(session, conversation.id)
    if not has_running_tool(newest):
        return
    if fetch_status(conversation, server) == "running":
        raise Retry("a tool of the agent runs", seconds=BUSY_SECONDS, counts=False)


def _is_delivered_late(server: AgentServer, message: PendingMessage) -> bool:
    time.sleep(LATE_SECONDS)
    with suppress(AgentServerRefused):  # an older server without this request
        server.await_messages(message.conversation_id)
    return _is_delivered(server, message)


def _is_delivered(server: AgentServer, message: PendingMessage) -> bool:
    for found in _list_messages(server, message.conversation_id):
        if found.id == message.newest_before:
            return False
        if _texts_of(found.llm_message.content) == _texts_of(message.content):
            return True
    return False


def _list_messages(server: AgentServer, conversation_id: str) -> Iterator[MessageEvent]:
    """Yield messages of users, newest first, up to the first that is larger than a pending message can be."""
    with suppress(ResponseTooLarge):
        yield from server.list_messages(conversation_id)


def _texts_of(content: list[dict[str, Any]]) -> list[Any]:
    """The texts and images of a message, without the fields that servers add."""
    return [part.get("image_urls") or part.get("text") for part in content]

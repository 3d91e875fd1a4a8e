"""The execution status of an agent, as its server has it, and the end of polls whose server fails."""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from shared.agent_server.errors import AgentServerUnreachable, DoorUnavailable, ResponseTooLarge, WrongServer
from shared.agent_server.responses import read_beginning
from shared.models import Conversation
from worker.agent_server.client import AgentServer

log = structlog.get_logger()

STATUS = "execution_status"


def fetch_status(conversation: Conversation, server: AgentServer) -> object:
    """Return the agent's execution status, unchecked; None: the server does not know the conversation.

    The server sends it with the whole document of the conversation, which grows with each call of a model. The status
    precedes what grows. If a document is too large and does not begin with it, the stored status counts, which webhooks
    keep up to date.
    """
    try:
        known = server.get_conversation(conversation.id)
    except ResponseTooLarge as error:
        return read_beginning(error.beginning).get(STATUS, conversation.execution_status)
    return None if known is None else known.get(STATUS)


@contextmanager
def suppress_failure(conversation: Conversation, *, may_wait: bool) -> Iterator[None]:
    """Log that the server fails in the block, instead of raising the error, which would repeat the run without a max.

    Its sandbox may run for days, because it responds to other requests. An error of the node's door says nothing about
    the server, and is always raised.

    Args:
        may_wait: raise the error nevertheless.
    """
    try:
        yield
    except DoorUnavailable:
        raise
    except (AgentServerUnreachable, WrongServer) as error:
        if may_wait:
            raise
        log.warning("not_polled", conversation=conversation.id, error=str(error))

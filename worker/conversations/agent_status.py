"""The execution status of an agent, as its server has it."""

from shared.agent_server.errors import ResponseTooLarge
from shared.agent_server.responses import read_beginning
from shared.models import Conversation
from worker.agent_server.client import AgentServer

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

"""The execution status of an agent, as its server has it."""

from shared.agent_server.errors import ResponseTooLarge
from shared.models import Conversation
from worker.agent_server.client import AgentServer


def fetch_status(conversation: Conversation, server: AgentServer) -> object:
    """Return the agent's execution status, unchecked; None: the server does not know the conversation.

    The server sends it with the whole document of the conversation, which grows with each call of a model. If that is
    too large, the stored status counts, which webhooks keep up to date.
    """
    try:
        known = server.get_conversation(conversation.id)
    except ResponseTooLarge:
        return conversation.execution_status
    return None if known is None else known.get("execution_status")

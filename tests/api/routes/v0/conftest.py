"""Fixtures whose conversations are in the sandbox with the scripted agent server."""

import pytest

from shared.models import Conversation


@pytest.fixture
def conversation(agent_conversation: Conversation) -> Conversation:
    """A conversation in the sandbox with the scripted agent server."""
    return agent_conversation

"""Tests here are about the sandbox with the scripted agent server."""

import pytest

from shared.models import Conversation, Sandbox


@pytest.fixture
def sandbox(agent_sandbox: Sandbox) -> Sandbox:
    """The sandbox with the scripted agent server."""
    return agent_sandbox


@pytest.fixture
def conversation(agent_conversation: Conversation) -> Conversation:
    """A conversation in it."""
    return agent_conversation

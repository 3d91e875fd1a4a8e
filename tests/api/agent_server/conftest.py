"""Fixtures: a sandbox with a scripted agent server and its conversation."""

import pytest

from shared.models import Conversation, Sandbox


@pytest.fixture
def sandbox(agent_sandbox: Sandbox) -> Sandbox:
    """The sandbox with the scripted agent server."""
    return agent_sandbox


@pytest.fixture
def conversation(agent_conversation: Conversation) -> Conversation:
    """A conversation in this sandbox."""
    return agent_conversation

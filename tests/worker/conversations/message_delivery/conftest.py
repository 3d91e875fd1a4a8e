"""A conversation in a running sandbox, and its agent server."""

import pytest

from shared.clock import after
from shared.models import Conversation, Node, Sandbox
from tests.factories import ApiUser, make_conversation
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.conversation import FakeConversation
from tests.worker.scenarios import (
    change,
)
from worker.context import WorkerContext
from worker.conversations import message_delivery


@pytest.fixture(autouse=True)
def _no_waiting(context: WorkerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_delivery, "LATE_SECONDS", 0)
    change(context, Node, context.settings.node, heartbeat_at=after(600))


@pytest.fixture
def conversation(context: WorkerContext, user: ApiUser, sandbox: Sandbox) -> Conversation:
    return make_conversation(context.database, user, sandbox, title_settled=True)


@pytest.fixture
def fake(server: FakeAgentServer, conversation: Conversation) -> FakeConversation:
    return server.add(conversation.id)

"""A conversation in a sandbox that runs, and its agent server."""

import pytest

from shared.clock import after
from shared.models import Conversation, Node, Sandbox
from tests.factories import Person, make_conversation
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.conversation import FakeConversation
from tests.fakes.engine import FakeEngine
from tests.worker.scenes import (
    change,
    row,
    running,
    server_of,
)
from worker import deliveries
from worker.parts import Parts


@pytest.fixture(autouse=True)
def _no_waiting(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "LATE_SECONDS", 0)
    change(parts, Node, parts.settings.node, heartbeat_at=after(600))


@pytest.fixture
def sandbox(parts: Parts, user: Person) -> Sandbox:
    return row(parts, Sandbox, running(parts, user))


@pytest.fixture
def server(engine: FakeEngine, sandbox: Sandbox) -> FakeAgentServer:
    return server_of(engine, sandbox.id)


@pytest.fixture
def conversation(parts: Parts, user: Person, sandbox: Sandbox) -> Conversation:
    return make_conversation(parts.database, user, sandbox, title_settled=True)


@pytest.fixture
def talk(server: FakeAgentServer, conversation: Conversation) -> FakeConversation:
    return server.add(conversation.id)

"""A conversation in a sandbox whose agent server answers what a test tells it to."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.database import Database
from shared.models import Conversation, Sandbox
from tests.factories import Person, make_conversation, make_sandbox
from tests.fakes.scripted_agent import ScriptedAgent
from tests.services.asgi import serving

PATH = "/api/v1/app-conversations"


@pytest.fixture
def agent() -> Iterator[ScriptedAgent]:
    """An agent server."""
    server = ScriptedAgent()
    with serving(server, lifespan="off") as url:
        server.answers["url"] = (0, url.encode())
        yield server


@pytest.fixture
def sandbox(database: Database, user: Person, agent: ScriptedAgent) -> Sandbox:
    """A running sandbox with that agent server."""
    url = agent.answers.pop("url")[1].decode()
    return make_sandbox(database, user, exposed_urls=[{"name": "AGENT_SERVER", "url": url, "port": 8000}])


@pytest.fixture
def conversation(database: Database, user: Person, sandbox: Sandbox) -> Conversation:
    """A conversation there."""
    return make_conversation(database, user, sandbox, working_dir="/workspace/project/app")


def ask(
    client: TestClient, person: Person, conversation: Conversation, method: str, path: str, body: Any = None
) -> Any:
    """The answer to somebody's request about a conversation."""
    return client.request(method, f"{PATH}/{conversation.id}/{path}", json=body, headers=person.headers)

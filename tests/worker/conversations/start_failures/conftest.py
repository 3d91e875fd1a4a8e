"""A user with settings, and the agent server of a running sandbox."""

import pytest

from tests.factories import Person
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.engine import FakeEngine
from tests.worker.scenes import (
    configure,
    running,
    server_of,
)
from worker.context import WorkerContext


@pytest.fixture(autouse=True)
def _settings(context: WorkerContext, user: Person) -> None:
    configure(context, user)


@pytest.fixture
def sandbox_id(context: WorkerContext, user: Person) -> str:
    return running(context, user)


@pytest.fixture
def server(engine: FakeEngine, sandbox_id: str) -> FakeAgentServer:
    """The agent server of the running sandbox."""
    return server_of(engine, sandbox_id)

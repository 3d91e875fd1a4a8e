"""Worker contexts with an engine in memory, on both databases."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from shared.crypto import Vault
from shared.db.database import Database
from shared.models import Sandbox
from shared.settings import Settings
from tests.doubles import RecordingPublisher
from tests.factories import NODE_ID, ApiUser, make_node, make_spec
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.engine import IMAGE, FakeEngine
from tests.worker.contexts import make_context
from tests.worker.scenarios import row, running, server_of
from worker.context import WorkerContext
from worker.lease_renewer import LeaseRenewer
from worker.settings import WorkerSettings


@pytest.fixture
def engine() -> FakeEngine:
    """Engine in memory with the default image."""
    return FakeEngine()


@pytest.fixture
def context(
    settings: Settings, database: Database, vault: Vault, publisher: RecordingPublisher, engine: FakeEngine
) -> Iterator[WorkerContext]:
    """Context of a worker on `node-a` with short timeouts and long leases."""
    make_spec(database, IMAGE)
    make_node(database)
    with engine.agent_servers() as http:
        yield make_context(database, engine, http, settings, _worker_settings(), vault=vault, publisher=publisher)


@cache
def _worker_settings() -> WorkerSettings:
    # Cached: the settings are frozen, and each search for them in the environment takes milliseconds.
    return WorkerSettings(node=NODE_ID, health_timeout=0.2, lease_seconds=15, first_message_timeout_seconds=0)


@pytest.fixture
def other_engine() -> FakeEngine:
    """Engine in memory of another node."""
    return FakeEngine()


@pytest.fixture
def other_worker(context: WorkerContext, other_engine: FakeEngine) -> Iterator[WorkerContext]:
    """Context of a worker of another node, `node-b`, with that engine."""
    make_node(context.database, "node-b")
    settings = context.settings.model_copy(update={"node": "node-b", "node_lost_seconds": 20.0})
    renewer = LeaseRenewer(context.database, "worker-b", 15)
    with other_engine.agent_servers() as http:
        yield replace(
            context, settings=settings, renewer=renewer, engine=other_engine, publisher=RecordingPublisher(), http=http
        )


@pytest.fixture
def unused_port() -> Iterator[int]:
    """Port of this machine that is bound without a listener: it is reserved, and refuses connections."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def sandbox_id(context: WorkerContext, user: ApiUser) -> str:
    """Id of a running sandbox of the user."""
    return running(context, user)


@pytest.fixture
def sandbox(context: WorkerContext, sandbox_id: str) -> Sandbox:
    """That sandbox's row."""
    return row(context, Sandbox, sandbox_id)


@pytest.fixture
def server(engine: FakeEngine, sandbox_id: str) -> FakeAgentServer:
    """Agent server of that sandbox."""
    return server_of(engine, sandbox_id)

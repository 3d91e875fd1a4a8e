"""An API process and an agent server, both behind real sockets, and a worker that resumes at once."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from api.app import create_app
from api.realtime.completion_waiter import CompletionWaiter, PollIntervals
from api.request.context import Context
from shared.db.database import Database
from shared.models import Sandbox
from shared.states import Status
from tests.api.sandbox_proxy.parts import Agent, Serve, Worker
from tests.factories import Person, make_sandbox, session_key_of
from tests.fakes.traffic import TrafficServer
from tests.fakes.worker import settle
from tests.services import http
from tests.services.asgi import serving

OFTEN = PollIntervals(hearing=0.02, blind=0.02)


@pytest.fixture
def agent() -> Iterator[Agent]:
    """An agent server."""
    server = TrafficServer()
    with serving(server) as url:
        yield Agent(server, url)


@pytest.fixture
def worker(database: Database, agent: Agent) -> Worker:
    """What resumes."""
    return Worker(lambda sandbox_id: settle(database, sandbox_id, agent.running))


@pytest.fixture
def waiters() -> list[CompletionWaiter]:
    """Those of the API processes that were started."""
    return []


@pytest.fixture
def serve(context: Context, database_url: str, worker: Worker, waiters: list[CompletionWaiter]) -> Iterator[Serve]:
    """API processes, each with connections to the store of its own; settings that differ are named."""
    with ExitStack() as stack:

        @contextmanager
        def serve(**settings: Any) -> Iterator[httpx.Client]:
            database = Database(database_url)
            stack.callback(database.close)
            own = replace(
                context,
                settings=context.settings.model_copy(update=settings),
                database=database,
                publisher=worker,
                waiter=CompletionWaiter(database, OFTEN),
            )
            waiters.append(own.waiter)
            with serving(create_app(own)) as url, http.open_client(url, timeout=30) as client:
                # Routes are made when they are first looked for, in a way that two threads must not do at once.
                assert client.get("/nowhere").status_code == 404
                yield client

        yield serve


@pytest.fixture
def api(serve: Serve) -> Iterator[httpx.Client]:
    """A client of one API process."""
    with serve() as client:
        yield client


@pytest.fixture
def running(database: Database, user: Person, agent: Agent) -> Sandbox:
    """A running sandbox."""
    return _made(database, user, agent, status=Status.RUNNING, exposed_urls=agent.urls)


@pytest.fixture
def asleep(database: Database, user: Person, agent: Agent) -> Sandbox:
    """A frozen sandbox."""
    return _made(database, user, agent, status=Status.PAUSED)


def _made(database: Database, user: Person, agent: Agent, **columns: Any) -> Sandbox:
    sandbox = make_sandbox(database, user, **columns)
    agent.server.key = session_key_of(sandbox)
    return sandbox

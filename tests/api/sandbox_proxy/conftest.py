"""API processes and an agent server with real sockets, and a worker that resumes immediately."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from api.app import create_app
from api.realtime.completion_waiter import CompletionWaiter, PollIntervals
from api.request.context import Context
from api.server.counted_websockets import CountedWebSocket
from shared.db.database import Database
from shared.models import Sandbox
from shared.states import Status
from tests.api.sandbox_proxy.doubles import Agent, Serve, Worker
from tests.factories import ApiUser, make_sandbox, session_key_of
from tests.fakes.traffic import TrafficServer
from tests.fakes.worker import settle
from tests.services import http
from tests.services.asgi import serving

SHORT_INTERVALS = PollIntervals(connected=0.02, disconnected=0.02)


@pytest.fixture
def agent() -> Iterator[Agent]:
    """An agent server with a socket."""
    server = TrafficServer()
    with serving(server) as url:
        yield Agent(server, url)


@pytest.fixture
def worker(database: Database, agent: Agent) -> Worker:
    """A worker that resumes immediately."""
    return Worker(lambda sandbox_id: settle(database, sandbox_id, agent.running))


@pytest.fixture
def waiters() -> list[CompletionWaiter]:
    """The waiters of the started API processes."""
    return []


@pytest.fixture
def serve(context: Context, database_url: str, worker: Worker, waiters: list[CompletionWaiter]) -> Iterator[Serve]:
    """Start API processes, each with its own connections to the store, and with these settings changed.

    `at_port`: the port at which requests seem to arrive.
    """
    with ExitStack() as stack:

        @contextmanager
        def serve(at_port: int | None = None, **settings: Any) -> Iterator[httpx.Client]:
            database = Database(database_url)
            stack.callback(database.close)
            own = replace(
                context,
                settings=context.settings.model_copy(update=settings),
                database=database,
                publisher=worker,
                waiter=CompletionWaiter(database, SHORT_INTERVALS),
            )
            waiters.append(own.waiter)
            with (
                serving(moved(create_app(own), at_port), ws=CountedWebSocket) as url,
                http.open_client(url, timeout=30) as client,
            ):
                # The first request builds the routes, which two threads must not do concurrently.
                assert client.get("/nowhere").status_code in (401, 404)
                yield client

        yield serve


def moved(app: ASGIApp, port: int | None) -> ASGIApp:
    """Return an application whose requests seem to arrive at this port; None: at the real one."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "server": ("127.0.0.1", port)} if "server" in scope else scope, receive, send)

    return serve if port else app


@pytest.fixture
def api(serve: Serve) -> Iterator[httpx.Client]:
    """A client of one API process."""
    with serve() as client:
        yield client


@pytest.fixture
def running(database: Database, user: ApiUser, agent: Agent) -> Sandbox:
    """A running sandbox."""
    return _make(database, user, agent, status=Status.RUNNING, exposed_urls=agent.urls)


@pytest.fixture
def paused(database: Database, user: ApiUser, agent: Agent) -> Sandbox:
    """A paused sandbox."""
    return _make(database, user, agent, status=Status.PAUSED)


def _make(database: Database, user: ApiUser, agent: Agent, **columns: Any) -> Sandbox:
    sandbox = make_sandbox(database, user, **columns)
    agent.server.key = session_key_of(sandbox)
    return sandbox

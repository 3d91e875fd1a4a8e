"""Websockets that connect during an action of the agent, while the agent server sends nothing."""

import json
import threading
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from api.json_text import SMALL_BYTES
from api.sandbox_proxy import event_replay
from api.sandbox_proxy.event_replay import Resend, read_resend
from api.sandbox_proxy.request import read_proxy_request
from api.sandbox_proxy.websocket import WebSocketProxy
from shared.agent_server.responses import read_shape
from shared.models import Sandbox
from tests.api.agent_reports import JSON
from tests.api.sandbox_proxy.doubles import Agent, Serve, key_of
from tests.api.sandbox_proxy.test_websocket import close_of, socket
from tests.factories import ApiUser
from tests.waiting import eventually

CONVERSATION = "0" * 8 + "-0000-4000-8000-" + "0" * 12
PATH = f"sockets/events/{CONVERSATION}"
TIME = "2026-01-02T03:04:05.123456"
ALL, SINCE = f"{PATH}?resend_mode=all", f"{PATH}?resend_mode=since&after_timestamp=2026-01-02T03%3A04%3A05"
EVENTS: list[dict[str, Any]] = [{"id": "one", "text": "\u00e9"}, {"id": "two"}, {"id": "three"}]


@pytest.fixture(autouse=True)
def _short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_replay, "STATE_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(event_replay, "MAX_PAUSE_SECONDS", 0.2)


@pytest.mark.parametrize("path", [ALL, SINCE, f"{PATH}?resend_all=true"])
def test_socket_that_requests_events_gets_a_replay(
    api: httpx.Client, running: Sandbox, agent: Agent, path: str
) -> None:
    agent.server.steps, agent.server.events = True, EVENTS
    with socket(api, running, path, **key_of(running)) as connection:
        assert [json.loads(connection.recv(timeout=20)) for _ in EVENTS] == EVENTS
        agent.server.steps = False
        assert connection.recv(timeout=20) == f"/{path}"
        connection.send("and then frames pass as usual")
        assert connection.recv(timeout=20) == "and then frames pass as usual"
    # The agent server may be asked once more before it sends its own frame.
    searches = [got.target for got in agent.server.got if "/events/search" in got.target][: len(EVENTS)]
    assert len(searches) == len(EVENTS)
    assert all(target.startswith(f"/api/conversations/{CONVERSATION}/events/search") for target in searches)
    assert ["timestamp__gte=2026-01-02T03%3A04%3A05" in target for target in searches] == [path == SINCE] * len(EVENTS)


def test_events_of_the_next_action_are_replayed_once(api: httpx.Client, running: Sandbox, agent: Agent) -> None:
    """The agent server may hold back the state until the end of an action that began after the websocket was opened."""
    timed = [event | {"timestamp": f"2026-01-02T03:04:0{number}"} for number, event in enumerate(EVENTS)]
    agent.server.steps, agent.server.events = True, timed[:1]
    with socket(api, running, ALL, **key_of(running)) as connection:
        assert json.loads(connection.recv(timeout=20)) == timed[0]
        for event in timed[1:]:
            agent.server.events = [*agent.server.events, event]
            assert json.loads(connection.recv(timeout=20)) == event
        agent.server.steps = False
        assert connection.recv(timeout=20) == f"/{ALL}"
    searches = [got.target for got in agent.server.got if "/events/search" in got.target]
    assert "timestamp__gte=2026-01-02T03%3A04%3A01" in searches[-1]


def test_replay_works_with_a_user_s_key(api: httpx.Client, running: Sandbox, agent: Agent, user: ApiUser) -> None:
    agent.server.steps, agent.server.events = True, EVENTS
    with socket(api, running, ALL, **user.headers) as connection:
        assert json.loads(connection.recv(timeout=20)) == EVENTS[0]


@pytest.mark.parametrize("time", ["%80" * 20_000, "2" * 65, ""], ids=("longest", "long", "empty"))
def test_invalid_time_requests_no_events(time: str) -> None:
    """With the longest time, the URL of a search would be longer than httpx allows."""
    scope = {"path": "", "raw_path": f"/sandbox/{'0' * 32}/{PATH}".encode(), "headers": [], "scheme": "ws"}
    for after, events in ((time, None), (TIME, Resend(CONVERSATION, TIME))):
        query = f"resend_mode=since&after_timestamp={after}".encode()
        assert read_resend(read_proxy_request(scope | {"query_string": query})) == events


@pytest.mark.parametrize(
    "path", [PATH, f"{PATH}?resend_mode=since", f"{PATH}?resend_mode=none", "sockets/bash-events?resend_mode=all"]
)
def test_socket_that_requests_no_events_gets_no_replay(
    api: httpx.Client, running: Sandbox, agent: Agent, path: str
) -> None:
    agent.server.steps, agent.server.events = True, EVENTS
    with socket(api, running, path, **key_of(running)) as connection:
        with pytest.raises(TimeoutError):
            connection.recv(timeout=0.4)  # twice the timeout
        agent.server.steps = False
        assert connection.recv(timeout=20) == f"/{path}" + ("" if "?" in path else "?")
    assert [got for got in agent.server.got if "/events/search" in got.target] == []


def test_server_that_sends_frames_gets_no_search(api: httpx.Client, running: Sandbox, agent: Agent) -> None:
    agent.server.events = EVENTS
    with socket(api, running, ALL, **key_of(running)) as connection:
        assert connection.recv(timeout=20) == f"/{ALL}"
        connection.send("close")
        assert close_of(connection) == (4004, "requested")
    assert [got for got in agent.server.got if "/events/search" in got.target] == []


@pytest.mark.parametrize("events", [[], [{"not": "an event"}]])
def test_server_without_events_causes_no_error(
    api: httpx.Client, running: Sandbox, agent: Agent, events: list[dict[str, Any]]
) -> None:
    agent.server.steps, agent.server.events = True, events
    with socket(api, running, ALL, **key_of(running)) as connection:
        for event in events:
            assert json.loads(connection.recv(timeout=20)) == event
        agent.server.steps = False
        assert connection.recv(timeout=20) == f"/{ALL}"


def test_client_that_disconnects_during_the_replay_causes_no_error(
    serve: Serve, running: Sandbox, agent: Agent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended, serve_websocket = [], WebSocketProxy.serve

    async def serve_and_record(*arguments: Any) -> None:
        try:
            await serve_websocket(*arguments)
        finally:
            ended.append(arguments)

    monkeypatch.setattr(WebSocketProxy, "serve", serve_and_record)
    agent.server.steps, agent.server.events = True, EVENTS
    # An API process that has ended has logged the errors of its websockets.
    with serve() as api:
        with socket(api, running, ALL, **key_of(running)) as connection:
            connection.recv(timeout=20)
        assert eventually(lambda: ended)
    agent.server.steps = False
    assert "uvicorn.error" in {record.name for record in caplog.records}
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_search_that_hangs_delays_no_frames(
    api: httpx.Client, running: Sandbox, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_replay, "PAGE_SECONDS", 0.2)
    agent.server.steps = agent.server.hangs = True
    with socket(api, running, ALL, **key_of(running)) as connection:
        eventually(lambda: any("/events/search" in got.target for got in agent.server.got))
        agent.server.steps = False
        assert connection.recv(timeout=20) == f"/{ALL}"
    agent.server.hangs = False


def test_replays_of_one_owner_do_not_delay_other_users(
    api: httpx.Client, running: Sandbox, agent: Agent, other_user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each websocket's page is too large to be read on the event loop, and another user sends a document as large."""
    begun, released = [], threading.Event()

    def read_slowly(*arguments: Any) -> Any:
        begun.append(arguments)
        released.wait(60)
        return read_shape(*arguments)

    monkeypatch.setattr("api.agent_server.responses.read_shape", read_slowly)
    agent.server.steps, agent.server.events = True, [{"id": "one", "text": "x" * SMALL_BYTES}]
    with ExitStack() as stack:
        stack.callback(released.set)
        sockets = [stack.enter_context(socket(api, running, ALL, **key_of(running))) for _ in range(3)]
        assert eventually(lambda: begun and len([got for got in agent.server.got if "/search" in got.target]) >= 3)
        settings = b'{"language": "en"' + b" " * SMALL_BYTES + b"}"
        response = api.post("/api/settings", content=settings, headers=other_user.headers | JSON)
        assert (response.status_code, len(begun)) == (200, 1)
        released.set()
        assert {json.loads(one.recv(timeout=20))["id"] for one in sockets} == {"one"}

"""Replay of events that an agent server holds back from a websocket during an action (decision 39).

The agent server first sends a websocket the conversation's state, for which it waits until the agent's action is over;
only then does it resend the requested events (agent server 1.58.2). An action may be a command that runs for an hour,
and a web client that connects meanwhile would show none of it. During that time the events can be read over HTTP: this
module reads them, and sends them in place of the agent server, until the agent server sends a frame itself. Between two
actions that follow each other closely, it may send none. A client that requests a resend identifies events by their
ids, and ignores duplicates.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from websockets.asyncio.client import ClientConnection

from api.agent_server.responses import read_response
from api.sandbox_proxy.request import ProxyRequest
from shared.agent_server import paths
from shared.agent_server.limits import MAX_EVENT_PAGES, MAX_ITEMS
from shared.agent_server.responses import AgentServerResponse, EventPage
from shared.errors import WorkspaceError

# The state comes within milliseconds, or when the action is over.
STATE_TIMEOUT_SECONDS = 1.0
# The next action may begin before the agent server has sent the state. Each pause is twice as long as the one before.
MAX_PAUSE_SECONDS = 5.0
# The timeout of one page of events. The agent server's own frames wait for the page.
PAGE_SECONDS = 5.0
# The timeout of all pages, including the time that the client takes to read their events. The client gets later events
# when the action is over.
REPLAY_SECONDS = 30.0
# The max length of an event's timestamp. One with microseconds and time zone has 32 characters.
MAX_TIMESTAMP = 64
PATH = re.compile(r"/sockets/events/([0-9a-fA-F-]{32,36})")

Fetch = Callable[[str, dict[str, Any], float], Awaitable[AgentServerResponse]]


class Resend(NamedTuple):
    """The events that a websocket requests."""

    conversation_id: str
    # The time of the first event; None: all events.
    since: str | None


def read_resend(proxied: ProxyRequest) -> Resend | None:
    """Read which events a websocket requests (wire contract 3.5); None: no events."""
    path, _, query = proxied.target.decode("latin-1").partition("?")
    matched = PATH.fullmatch(path)
    params = dict(parse_qsl(query))
    mode = params.get("resend_mode", "all" if params.get("resend_all") == "true" else None)
    since = params.get("after_timestamp", "") if mode == "since" else None
    # A longer one is no time, and would not fit into the URL of a search.
    is_request = mode == "all" or (since is not None and 0 < len(since) <= MAX_TIMESTAMP)
    if matched is None or not is_request:
        return None
    return Resend(matched[1], since)


async def frames(server: ClientConnection, resend: Resend, fetch: Fetch) -> AsyncIterator[str | bytes]:
    """Yield the agent server's frames; before them the requested events, for as long as the agent server is silent.

    Args:
        server: the connection to the agent server.
        resend: the requested events.
        fetch: reads a path of the agent server, with parameters and a timeout.

    Raises:
        ConnectionClosed: the agent server closed the connection.
    """
    replay, pause = _Replay(resend, fetch), STATE_TIMEOUT_SECONDS
    while not replay.is_over:
        try:
            async with asyncio.timeout(pause):
                first = await server.recv()
        except TimeoutError:
            async for event in replay.read():
                yield event
            pause = min(2 * pause, MAX_PAUSE_SECONDS)
        else:
            yield first
            break
    async for frame in server:
        yield frame


class _Replay:
    """The events that a websocket requests, each read once. All reads together are limited in events and in time."""

    def __init__(self, resend: Resend, fetch: Fetch) -> None:
        self._path, self._fetch = paths.event_search(resend.conversation_id), fetch
        self._since = resend.since
        # Hashes of the ids of events: an id may be long.
        self._sent: set[int | None] = set()
        self._events_left, self._seconds_left = MAX_EVENT_PAGES * MAX_ITEMS, REPLAY_SECONDS

    @property
    def is_over(self) -> bool:
        """Whether nothing more is read. The agent server sends the other events when the action is over."""
        return self._events_left <= 0 or self._seconds_left <= 0

    async def read(self) -> AsyncIterator[str]:
        """Yield the events that are new since the last read."""
        params: dict[str, Any] = {"limit": MAX_ITEMS, "sort_order": "TIMESTAMP"}
        params |= {"timestamp__gte": self._since} if self._since else {}
        for _ in range(MAX_EVENT_PAGES):
            began = time.monotonic()
            page = await self._read_page(params)
            for event in self._new(page):
                yield await run_in_threadpool(json.dumps, event)
            self._seconds_left -= time.monotonic() - began
            if page is None or page.next_page_id is None or self.is_over:
                return
            params["page_id"] = page.next_page_id

    async def _read_page(self, params: dict[str, Any]) -> EventPage | None:
        """Read a page; None if that fails."""
        seconds = min(PAGE_SECONDS, self._seconds_left)
        with suppress(WorkspaceError):
            page, _document = await read_response(await self._fetch(self._path, params, seconds), EventPage)
            return page
        return None

    def _new(self, page: EventPage | None) -> list[dict[str, Any]]:
        """The page's new events. A failed page counts as a full one, so that failing reads come to an end."""
        items = [] if page is None else page.items
        new = [event for event in items if _identity(event) not in self._sent]
        self._sent |= {_identity(event) for event in new} - {None}
        for event in new:
            timestamp = event.get("timestamp")
            if isinstance(timestamp, str) and len(timestamp) <= MAX_TIMESTAMP:
                self._since = timestamp
        self._events_left -= MAX_ITEMS if page is None else len(new)
        return new


def _identity(event: dict[str, Any]) -> int | None:
    found = event.get("id")
    return hash(found) if isinstance(found, str) else None

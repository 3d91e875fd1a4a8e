"""Replay of events that an agent server holds back from a websocket during an action (decision 39).

The agent server first sends a websocket the conversation's state, for which it waits until the agent's action is over;
only then does it resend the requested events (agent server 1.58.2). An action may be a command that runs for an hour,
and a web client that connects then would show none of it. During that time the events can be read over HTTP: this
module reads them, and sends them in place of the agent server, until the agent server sends a frame itself. Between two
actions that follow each other closely, it may send none. A client that requests a resend identifies events by their
ids, and ignores duplicates.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, suppress
from sys import getsizeof
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

Fetch = Callable[..., AbstractAsyncContextManager[AgentServerResponse]]
Note = Callable[[int], None]


class Resend(NamedTuple):
    """The events that a websocket requests."""

    conversation_id: str
    # The time of the first event; None: all events.
    since: str | None


class _Event(NamedTuple):
    """An event, encoded. The identity is the hash of its id, which may be long; None: it has no id."""

    identity: int | None
    # None: it is no time.
    timestamp: str | None
    text: str


class _Page(NamedTuple):
    events: list[_Event]
    next_page_id: str | None


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


async def frames(server: ClientConnection, resend: Resend, fetch: Fetch, note: Note) -> AsyncIterator[str | bytes]:
    """Yield the agent server's frames; before them the requested events, for as long as the agent server is silent.

    Args:
        server: the connection to the agent server.
        resend: the requested events.
        fetch: reads a path of the agent server, with `params` and `seconds`, for a block that parses the response.
        note: called with the number of bytes of events in memory, each time it changes.

    Raises:
        ConnectionClosed: the agent server closed the connection.
    """
    replay, pause = _Replay(resend, fetch, note), STATE_TIMEOUT_SECONDS
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

    def __init__(self, resend: Resend, fetch: Fetch, note: Note) -> None:
        self._path, self._fetch, self._note = paths.event_search(resend.conversation_id), fetch, note
        self._since = resend.since
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
            new = self._new(page)
            # A client that reads slowly keeps the whole page in memory.
            self._note(sum(getsizeof(event.text) for event in new))
            for event in new:
                yield event.text
            self._note(0)
            self._seconds_left -= time.monotonic() - began
            if page is None or page.next_page_id is None or self.is_over:
                return
            params["page_id"] = page.next_page_id

    async def _read_page(self, params: dict[str, Any]) -> _Page | None:
        """Read a page; None if that fails."""
        seconds = min(PAGE_SECONDS, self._seconds_left)
        with suppress(WorkspaceError):
            async with self._fetch(self._path, params=params, seconds=seconds) as response:
                page, _document = await read_response(response, EventPage)
                return _Page(await run_in_threadpool(_encode, page.items), page.next_page_id)
        return None

    def _new(self, page: _Page | None) -> list[_Event]:
        """The page's new events. A failed page counts as a full one, so that failing reads come to an end."""
        events = [] if page is None else page.events
        new = [event for event in events if event.identity not in self._sent]
        self._sent |= {event.identity for event in new} - {None}
        for event in new:
            self._since = event.timestamp or self._since
        self._events_left -= MAX_ITEMS if page is None else len(new)
        return new


def _encode(events: list[dict[str, Any]]) -> list[_Event]:
    """Encode events, each in a call of its own: one call for all of them would delay other requests."""
    return [_Event(_identity(event), _timestamp(event), json.dumps(event)) for event in events]


def _identity(event: dict[str, Any]) -> int | None:
    found = event.get("id")
    return hash(found) if isinstance(found, str) else None


def _timestamp(event: dict[str, Any]) -> str | None:
    found = event.get("timestamp")
    return found if isinstance(found, str) and len(found) <= MAX_TIMESTAMP else None

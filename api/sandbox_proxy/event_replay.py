"""Replay of events that an agent server holds back from a websocket during an action (decision 39).

The agent server first sends a websocket the conversation's state, for which it waits until the agent's action is over;
only then does it resend the requested events (agent server 1.58.2). An action may be a command that runs for an hour,
and a web client that connects meanwhile would show none of it. The events can be read over HTTP all that time: this
module reads them, and sends them in the agent server's place. A client that requests a resend identifies events by
their ids, and ignores duplicates.
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

from api.agent_server.answers import read
from api.sandbox_proxy.request import ProxyRequest
from shared.agent_server import paths
from shared.agent_server.limits import MAX_EVENT_PAGES, MAX_ITEMS
from shared.agent_server.responses import Answer, EventPage
from shared.errors import WorkspaceError

# The state comes within milliseconds, or when the action is over.
STATE_TIMEOUT_SECONDS = 1.0
# The timeout of one page of events. The agent server's own frames wait for the page.
PAGE_SECONDS = 5.0
# The timeout of all pages, with the time that the client takes for their events. It gets later events when the action
# is over.
REPLAY_SECONDS = 30.0
PATH = re.compile(r"/sockets/events/([0-9a-fA-F-]{32,36})")

Ask = Callable[[str, dict[str, Any], float], Awaitable[Answer]]


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
    since = params.get("after_timestamp") if mode == "since" else None
    if matched is None or mode not in ("all", "since") or (mode == "since" and since is None):
        return None
    return Resend(matched[1], since)


async def frames(server: ClientConnection, resend: Resend, ask: Ask) -> AsyncIterator[str | bytes]:
    """Yield the agent server's frames; before them the requested events, if the agent server is silent.

    Args:
        server: the connection to the agent server.
        resend: the requested events.
        ask: reads a path of the agent server, with parameters and a timeout.

    Raises:
        ConnectionClosed: the agent server closed the connection.
    """
    try:
        async with asyncio.timeout(STATE_TIMEOUT_SECONDS):
            first = await server.recv()
    except TimeoutError:
        async for event in _read(resend, ask):
            yield event
    else:
        yield first
    async for frame in server:
        yield frame


async def _read(resend: Resend, ask: Ask) -> AsyncIterator[str]:
    path = paths.event_search(resend.conversation_id)
    params: dict[str, Any] = {"limit": MAX_ITEMS, "sort_order": "TIMESTAMP"}
    params |= {"timestamp__gte": resend.since} if resend.since else {}
    ends_at = time.monotonic() + REPLAY_SECONDS
    # If reading fails, the agent server sends the events when the action is over.
    with suppress(WorkspaceError):
        for _ in range(MAX_EVENT_PAGES):
            seconds = min(PAGE_SECONDS, ends_at - time.monotonic())
            page, _document = await read(await ask(path, params, seconds), EventPage)
            for event in page.items:
                yield await run_in_threadpool(json.dumps, event)
            if page.next_page_id is None:
                return
            params["page_id"] = page.next_page_id

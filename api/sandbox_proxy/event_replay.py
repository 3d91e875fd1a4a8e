"""The events that an agent server keeps back from whoever comes in the midst of a step.

A websocket begins there with the conversation's state, for which it waits until the agent's step is over; only then are
the events sent again that were asked for (agent server 1.58.2). A step may be a command of an hour, and a page that was
opened meanwhile would show nothing of it. The events can be read all that time: so they are, and are sent in its place.
Whoever asks for events again knows them by their ids, and takes no harm from getting them twice.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from websockets.asyncio.client import ClientConnection

from api.agent_server.client import Answer
from api.sandbox_proxy.request import ProxyRequest
from shared.errors import WorkspaceError

# The state comes within milliseconds, or when the step is over.
PATIENCE_SECONDS = 1.0
# What the agent server says meanwhile waits for a page as long, and no longer.
PAGE_SECONDS = 5.0
EVENTS_A_PAGE = 100
# Beyond that the step's end will have to do.
MAX_PAGES = 20
PATH = re.compile(r"/sockets/events/([0-9a-fA-F-]{32,36})")

Ask = Callable[[str, dict[str, Any]], Awaitable[Answer]]


class Resend(NamedTuple):
    """Which events somebody wants to have again."""

    conversation_id: str
    # The time of the first of them; None: all.
    since: str | None


def read_resend(proxied: ProxyRequest) -> Resend | None:
    """What a websocket asks for (wire contract 3.5); None: nothing."""
    path, _, query = proxied.target.decode("latin-1").partition("?")
    matched = PATH.fullmatch(path)
    asked = dict(parse_qsl(query))
    mode = asked.get("resend_mode", "all" if asked.get("resend_all") == "true" else None)
    since = asked.get("after_timestamp") if mode == "since" else None
    if matched is None or mode not in ("all", "since") or (mode == "since" and since is None):
        return None
    return Resend(matched[1], since)


async def frames(server: ClientConnection, resend: Resend, ask: Ask) -> AsyncIterator[str | bytes]:
    """What the agent server says, and first the events, if it says nothing.

    Args:
        server: where frames come from.
        resend: what was asked for.
        ask: reads a path of the agent server, with parameters.

    Raises:
        ConnectionClosed: it says no more.
    """
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            first = await server.recv()
    except TimeoutError:
        async for event in _read(resend, ask):
            yield event
    else:
        yield first
    async for frame in server:
        yield frame


async def _read(resend: Resend, ask: Ask) -> AsyncIterator[str]:
    path = f"/api/conversations/{resend.conversation_id}/events/search"
    params: dict[str, Any] = {"limit": EVENTS_A_PAGE, "sort_order": "TIMESTAMP"}
    params |= {"timestamp__gte": resend.since} if resend.since else {}
    # Where it does not tell, they come when the step is over.
    with suppress(WorkspaceError, TimeoutError, KeyError, TypeError):
        for _ in range(MAX_PAGES):
            page = await (await asyncio.wait_for(ask(path, params), PAGE_SECONDS)).read_json()
            for event in page["items"]:
                yield await run_in_threadpool(json.dumps, event)
            if not page["next_page_id"]:
                return
            params["page_id"] = page["next_page_id"]

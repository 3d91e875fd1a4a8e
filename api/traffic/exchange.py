"""Requests to agent servers and their answers, passed on as they come: nothing is kept in between."""

import asyncio
import ssl
import sys
from collections.abc import AsyncIterable, AsyncIterator, Coroutine
from contextlib import nullcontext, suppress
from typing import Any

import httpx
import structlog
from starlette.types import Receive, Send

from api.context import Context
from api.traffic import headers
from api.traffic.door import Door
from api.traffic.errors import Unanswered
from api.traffic.uses import Uses
from api.traffic.visit import Visit
from api.traffic.waking import Waker
from shared import failpoints
from shared.store.traffic import Seen
from shared.traffic import agent_server

log = structlog.get_logger()

# httpcore asks for it four times a request; where it isn't installed, Python looks through all its path each time.
sys.modules.setdefault("sniffio", None)  # type: ignore[arg-type]

CONNECT_SECONDS = 5.0
# The agent server drops a connection that was idle for 5 s: a request must not meet it doing so.
KEEPALIVE_SECONDS = 4.0
MOST_KEPT = 1000
# What is beyond can't be sent on (RFC 9110, section 15).
LAST_STATUS = 599
# An answer may take as long as the caller has patience: a command, say, takes what it takes.
TIMEOUT = {"connect": CONNECT_SECONDS, "read": None, "write": None, "pool": None}


class Exchanges:
    """The requests of one process. One set of connections is for all of them, and kept for reuse."""

    def __init__(self, here: Context, door: Door, waker: Waker, uses: Uses) -> None:
        """Serve with these parts."""
        self._vault = here.vault
        self._door, self._waker, self._uses = door, waker, uses
        # The transport alone: a client's cookies would go from one sandbox to the next.
        self._transport = httpx.AsyncHTTPTransport(
            trust_env=False,
            # They speak no TLS: this one trusts nobody, and costs no reading of certificates.
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            limits=httpx.Limits(max_keepalive_connections=MOST_KEPT, keepalive_expiry=KEEPALIVE_SECONDS),
        )

    async def serve(self, visit: Visit, receive: Receive, send: Send) -> None:
        """Serve one request, until its caller leaves."""
        seen = await self._door.look(visit)
        inbox = Inbox(visit, receive)
        await inbox.unless_left(self._serve(visit, seen, inbox, send))

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.aclose()

    async def _serve(self, visit: Visit, seen: Seen, inbox: "Inbox", send: Send) -> None:
        seen = await self._rouse(visit, seen)
        with self._uses.during(seen):
            response, origin = await self._ask(visit, seen, inbox)
            try:
                if response.status_code > LAST_STATUS:
                    raise Unanswered(f"sandbox {seen.id}: its agent server answers with a status that there is not")
                await _pass_on(visit, response, origin, send)
            except httpx.TransportError as error:
                # The answer has begun: all that can be said is its end, which comes too early.
                log.warning("answer_broken", sandbox=seen.id, error=type(error).__name__)
            finally:
                await response.aclose()

    async def _rouse(self, visit: Visit, seen: Seen) -> Seen:
        return await self._waker.rouse(seen, lambda: self._door.look(visit))

    async def _ask(self, visit: Visit, seen: Seen, inbox: "Inbox") -> tuple[httpx.Response, str]:
        """The answer, as soon as it begins, and the agent server's origin.

        Raises:
            Unanswered: there is none.
        """
        try:
            return await self._send(visit, seen, inbox)
        except httpx.TransportError as error:
            unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            if not (unsent or visit.is_repeatable):
                raise Unanswered(f"sandbox {seen.id}: its agent server has hung up") from None
        # It may have been paused, or have moved, at this moment.
        seen = await self._rouse(visit, await self._door.look(visit))
        try:
            return await self._send(visit, seen, inbox)
        except httpx.TransportError:
            raise Unanswered(f"sandbox {seen.id}: its agent server does not answer") from None

    async def _send(self, visit: Visit, seen: Seen, inbox: "Inbox") -> tuple[httpx.Response, str]:
        origin = agent_server(seen.exposed_urls)
        if origin is None:
            raise Unanswered(f"sandbox {seen.id} has no agent server")
        url = httpx.URL(origin)
        key = visit.session_key or self._vault.decrypt(seen.session_key)
        request = httpx.Request(
            visit.method,
            url,
            headers=headers.for_server(visit, url.netloc, key),
            content=inbox.body() if visit.has_body else None,
            # Byte for byte as it came.
            extensions={"target": visit.target, "timeout": TIMEOUT},
        )
        with nullcontext() if visit.is_safe else failpoints.around("agent_server.forward"):
            return await self._transport.handle_async_request(request), origin


class Inbox:
    """What comes from the caller: a body, then nothing until it leaves."""

    def __init__(self, visit: Visit, receive: Receive) -> None:
        """Nothing is read before somebody asks for it."""
        self._receive = receive
        self._taken = asyncio.Event()
        if not visit.has_body:
            self._taken.set()

    async def body(self) -> AsyncIterator[bytes]:
        """The body, piece by piece."""
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise httpx.WriteError("the caller has left")
            if chunk := message.get("body", b""):
                yield chunk
            more = message.get("more_body", False)
        self._taken.set()

    async def unless_left(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this until it is done, or the caller has left."""
        working, leaving = asyncio.create_task(work), asyncio.create_task(self._watch())
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            working.cancel()  # changes nothing where it is done
        with suppress(asyncio.CancelledError):
            await working

    async def _watch(self) -> None:
        await self._taken.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def _pass_on(visit: Visit, response: httpx.Response, origin: str, send: Send) -> None:
    passed = headers.for_client(visit, response.headers.raw, origin.encode())
    await send({"type": "http.response.start", "status": response.status_code, "headers": passed})
    stream = response.stream
    assert isinstance(stream, AsyncIterable)  # noqa: S101 - an async transport gives no other
    async for chunk in stream:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})

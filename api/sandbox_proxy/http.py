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

from api.errors.upstream import BadGateway
from api.request.context import Context
from api.sandbox_proxy import headers
from api.sandbox_proxy.access import AccessCheck
from api.sandbox_proxy.activity import ActivityRecorder
from api.sandbox_proxy.request import ProxyRequest
from api.sandbox_proxy.wake import Waker
from shared.observability import failpoints
from shared.sandboxes.access import SandboxAccess
from shared.sandboxes.availability import agent_server

log = structlog.get_logger()

# httpcore asks for it four times a request; where it isn't installed, Python looks through all its path each time.
sys.modules.setdefault("sniffio", None)  # type: ignore[arg-type]

CONNECT_SECONDS = 5.0
# The agent server drops a connection that was idle for 5 s: a request must not meet it doing so.
KEEPALIVE_SECONDS = 4.0
MAX_STORED = 1000
# What is beyond can't be sent on (RFC 9110, section 15).
LAST_STATUS = 599
# An answer may take as long as the caller has patience: a command, say, takes what it takes.
TIMEOUT = {"connect": CONNECT_SECONDS, "read": None, "write": None, "pool": None}


class HttpProxy:
    """The requests of one process. One set of connections is for all of them, and kept for reuse."""

    def __init__(self, context: Context, access: AccessCheck, waker: Waker, uses: ActivityRecorder) -> None:
        """Serve with these parts."""
        self._vault = context.vault
        self._access, self._waker, self._uses = access, waker, uses
        # The transport alone: a client's cookies would go from one sandbox to the next.
        self._transport = httpx.AsyncHTTPTransport(
            trust_env=False,
            # They speak no TLS: this one trusts nobody, and costs no reading of certificates.
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            limits=httpx.Limits(max_keepalive_connections=MAX_STORED, keepalive_expiry=KEEPALIVE_SECONDS),
        )

    async def serve(self, proxied: ProxyRequest, receive: Receive, send: Send) -> None:
        """Serve one request, until its caller leaves."""
        seen = await self._access.look(proxied)
        inbox = RequestBody(proxied, receive)
        await inbox.unless_left(self._serve(proxied, seen, inbox, send))

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.aclose()

    async def _serve(self, proxied: ProxyRequest, seen: SandboxAccess, inbox: "RequestBody", send: Send) -> None:
        seen = await self._ensure_running(proxied, seen)
        with self._uses.during(seen):
            response, origin = await self._ask(proxied, seen, inbox)
            try:
                if response.status_code > LAST_STATUS:
                    raise BadGateway(f"sandbox {seen.id}: its agent server answers with a status that there is not")
                await _pass_on(proxied, response, origin, send)
            except httpx.TransportError as error:
                # The answer has begun: all that can be said is its end, which comes too early.
                log.warning("answer_broken", sandbox=seen.id, error=type(error).__name__)
            finally:
                await response.aclose()

    async def _ensure_running(self, proxied: ProxyRequest, seen: SandboxAccess) -> SandboxAccess:
        return await self._waker.ensure_running(seen, lambda: self._access.look(proxied))

    async def _ask(
        self, proxied: ProxyRequest, seen: SandboxAccess, inbox: "RequestBody"
    ) -> tuple[httpx.Response, str]:
        """The answer, as soon as it begins, and the agent server's origin.

        Raises:
            Unanswered: there is none.
        """
        try:
            return await self._send(proxied, seen, inbox)
        except httpx.TransportError as error:
            unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            if not (unsent or proxied.is_repeatable):
                raise BadGateway(f"sandbox {seen.id}: its agent server has hung up") from None
        # It may have been paused, or have moved, at this moment.
        seen = await self._ensure_running(proxied, await self._access.look(proxied))
        try:
            return await self._send(proxied, seen, inbox)
        except httpx.TransportError:
            raise BadGateway(f"sandbox {seen.id}: its agent server does not answer") from None

    async def _send(
        self, proxied: ProxyRequest, seen: SandboxAccess, inbox: "RequestBody"
    ) -> tuple[httpx.Response, str]:
        origin = agent_server(seen.exposed_urls)
        if origin is None:
            raise BadGateway(f"sandbox {seen.id} has no agent server")
        url = httpx.URL(origin)
        key = proxied.session_key or self._vault.decrypt(seen.session_key)
        request = httpx.Request(
            proxied.method,
            url,
            headers=headers.for_server(proxied, url.netloc, key),
            content=inbox.body() if proxied.has_body else None,
            # Byte for byte as it came.
            extensions={"target": proxied.target, "timeout": TIMEOUT},
        )
        with nullcontext() if proxied.is_safe else failpoints.around("agent_server.forward"):
            return await self._transport.handle_async_request(request), origin


class RequestBody:
    """What comes from the caller: a body, then nothing until it leaves."""

    def __init__(self, proxied: ProxyRequest, receive: Receive) -> None:
        """Nothing is read before somebody asks for it."""
        self._receive = receive
        self._taken = asyncio.Event()
        if not proxied.has_body:
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


async def _pass_on(proxied: ProxyRequest, response: httpx.Response, origin: str, send: Send) -> None:
    passed = headers.for_client(proxied, response.headers.raw, origin.encode())
    await send({"type": "http.response.start", "status": response.status_code, "headers": passed})
    stream = response.stream
    assert isinstance(stream, AsyncIterable)  # noqa: S101 - an async transport gives no other
    async for chunk in stream:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})

"""The HTTP proxy: it streams requests to agent servers and their responses, and stores nothing."""

import asyncio
import sys
from collections.abc import AsyncIterable, AsyncIterator, Coroutine
from contextlib import nullcontext, suppress
from typing import Any

import httpx
import structlog
from starlette.types import Receive, Send

from api.agent_server.transport import AgentServerTransport, describe_failure
from api.request.context import Context
from api.sandbox_proxy import headers
from api.sandbox_proxy.access import AccessCheck, find_url
from api.sandbox_proxy.activity import ActivityRecorder
from api.sandbox_proxy.chunk_rates import ChunkRate, ChunkRates
from api.sandbox_proxy.request import ProxyRequest
from api.sandbox_proxy.wake import Waker
from shared.agent_server.door import split_url
from shared.agent_server.errors import AgentServerUnreachable
from shared.agent_server.limits import CONNECT_SECONDS, WRITE_SECONDS
from shared.errors import WorkspaceError
from shared.observability import failpoints
from shared.sandboxes.access import SandboxAccess

log = structlog.get_logger()

# httpcore imports sniffio four times a request. If it is not installed, Python searches its whole path each time.
sys.modules.setdefault("sniffio", None)  # type: ignore[arg-type]

# A higher status can't be sent (RFC 9110, section 15).
MAX_STATUS = 599
# A response has no timeout: the caller decides how long to wait for a command.
TIMEOUT = {"connect": CONNECT_SECONDS, "read": None, "write": WRITE_SECONDS, "pool": None}


class HttpProxy:
    """Serves the HTTP requests of one process, with one pool of connections."""

    def __init__(self, context: Context, access: AccessCheck, waker: Waker, activity: ActivityRecorder) -> None:
        self._vault, self._limit = context.vault, context.limits.proxied
        self._access, self._waker, self._activity = access, waker, activity
        self._chunk_rates = ChunkRates()
        # Only the transport: an httpx client would send one sandbox's cookies to the next.
        self._transport = AgentServerTransport(context.door)

    async def serve(self, proxied: ProxyRequest, receive: Receive, send: Send) -> None:
        """Serve one request; cancel it if its caller disconnects. It counts against the limit of the sandbox's owner.

        Raises:
            TooManyRequests: the owner has too many open requests to sandboxes.
            WorkspaceError: the request can't be served, and no part of a response was sent.
        """
        sandbox = await self._access.check(proxied)
        with self._limit.hold(sandbox.owner_id):
            body = RequestBody(proxied, receive)
            await body.until_disconnect(self._serve(proxied, sandbox, body, send))

    async def close(self) -> None:
        await self._transport.aclose()

    async def _serve(self, proxied: ProxyRequest, sandbox: SandboxAccess, body: "RequestBody", send: Send) -> None:
        sandbox = await self._ensure_running(proxied, sandbox)
        with self._activity.during(sandbox):
            begun = asyncio.Event()
            await self._while_allowed(proxied, self._exchange(proxied, sandbox, body, send, begun), begun)

    async def _exchange(
        self, proxied: ProxyRequest, sandbox: SandboxAccess, body: "RequestBody", send: Send, begun: asyncio.Event
    ) -> None:
        """Send a request, and pass its response on; set `begun` when that begins."""
        response, origin = await self._send_with_retry(proxied, sandbox, body)
        try:
            if response.status_code > MAX_STATUS:
                raise AgentServerUnreachable(f"sandbox {sandbox.id}: its agent server sends an invalid status")
            begun.set()
            await _pass_on(proxied, response, origin, send, self._chunk_rates.find(sandbox.id))
        except httpx.TransportError as error:
            # The response has begun: the proxy can only end it early.
            log.warning("response_interrupted", sandbox=sandbox.id, error=type(error).__name__)
        finally:
            await response.aclose()

    async def _while_allowed(
        self, proxied: ProxyRequest, work: Coroutine[Any, Any, None], begun: asyncio.Event
    ) -> None:
        """Run `work` until it is done, or until the user's key gives no access any more.

        Raises:
            WorkspaceError: the response has not begun.
        """
        if not proxied.may_be_revoked:
            await work
            return
        tasks = asyncio.create_task(work), asyncio.create_task(self._access.recheck(proxied))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await next(task for task in tasks if task.done())
        except WorkspaceError as error:
            if not begun.is_set():
                raise
            log.warning("response_interrupted", sandbox=proxied.sandbox_id, error=type(error).__name__)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ensure_running(self, proxied: ProxyRequest, sandbox: SandboxAccess) -> SandboxAccess:
        return await self._waker.ensure_running(sandbox, lambda: self._access.check(proxied))

    async def _send_with_retry(
        self, proxied: ProxyRequest, sandbox: SandboxAccess, body: "RequestBody"
    ) -> tuple[httpx.Response, str]:
        """Return the response as soon as it begins, and the agent server's origin from its own point of view."""
        try:
            return await self._send(proxied, sandbox, body)
        except httpx.TransportError as error:
            unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            # The door may have refused the request after its body, which can be read only once.
            if not (proxied.is_repeatable or (unsent and not body.is_begun)):
                is_open = unsent or isinstance(error, httpx.WriteTimeout)
                what = describe_failure(error) if is_open else "its agent server closed the connection"
                raise AgentServerUnreachable(f"sandbox {sandbox.id}: {what}") from None
        # The sandbox may just have been paused, or have a new address: read it and retry.
        sandbox = await self._ensure_running(proxied, await self._access.check(proxied))
        try:
            return await self._send(proxied, sandbox, body)
        except httpx.TransportError as error:
            raise AgentServerUnreachable(f"sandbox {sandbox.id}: {describe_failure(error)}") from None

    async def _send(
        self, proxied: ProxyRequest, sandbox: SandboxAccess, body: "RequestBody"
    ) -> tuple[httpx.Response, str]:
        door, path, host = split_url(find_url(proxied, sandbox))
        key = None if proxied.port else proxied.session_key or self._vault.decrypt(sandbox.session_key)
        request = httpx.Request(
            proxied.method,
            door,
            headers=headers.for_server(proxied, host.encode(), key),
            content=body.chunks() if proxied.has_body else None,
            # Below the sandbox's path at the door, the target is byte for byte as the client sent it.
            extensions={"target": path.encode() + proxied.target, "timeout": TIMEOUT},
        )
        with nullcontext() if proxied.is_safe else failpoints.around("agent_server.forward"):
            return await self._transport.handle_async_request(request), f"http://{host}"


class RequestBody:
    """The ASGI messages of a caller: the body, then the disconnect."""

    def __init__(self, proxied: ProxyRequest, receive: Receive) -> None:
        # Whether a part of the body was read.
        self.is_begun = False
        self._receive = receive
        self._consumed = asyncio.Event()
        if not proxied.has_body:
            self._consumed.set()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body, chunk by chunk. It can be read once."""
        self.is_begun = more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise httpx.WriteError("the caller has disconnected")
            if chunk := message.get("body", b""):
                yield chunk
            more = message.get("more_body", False)
        self._consumed.set()

    async def until_disconnect(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until it is done; cancel it if the caller disconnects before that."""
        working, leaving = asyncio.create_task(work), asyncio.create_task(self._watch())
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            working.cancel()  # no effect if it is done
        with suppress(asyncio.CancelledError):
            await working

    async def _watch(self) -> None:
        await self._consumed.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def _pass_on(proxied: ProxyRequest, response: httpx.Response, origin: str, send: Send, rate: ChunkRate) -> None:
    status = response.status_code
    passed = headers.for_client(proxied, status, response.headers.raw, origin.encode())
    await send({"type": "http.response.start", "status": status, "headers": passed})
    stream = response.stream
    assert isinstance(stream, AsyncIterable)  # noqa: S101 - an async transport returns no other
    async for chunk in stream:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await rate.limit(chunk)
    await send({"type": "http.response.body", "body": b"", "more_body": False})

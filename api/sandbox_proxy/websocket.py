"""Websockets to agent servers: both sides' frames are passed on, and so are the codes with which they close.

The client is let in before its key is known, as the agent server does it (wire contract 3.5): the key may come in the
first frame. The agent server hears of the client only then, and gets the key in a first frame of ours.
"""

import asyncio
import json
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import structlog
from sqlalchemy.exc import SQLAlchemyError
from starlette.types import Receive, Send
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from api.agent_server.client import Answer
from api.errors.upstream import BadGateway
from api.request.context import Context
from api.sandbox_proxy import headers
from api.sandbox_proxy.access import AccessCheck
from api.sandbox_proxy.activity import ActivityRecorder
from api.sandbox_proxy.event_replay import frames, read_resend
from api.sandbox_proxy.http import CONNECT_SECONDS
from api.sandbox_proxy.request import SESSION_KEY, ProxyRequest
from api.sandbox_proxy.throttle import Pace
from api.sandbox_proxy.user_limits import Shares
from api.sandbox_proxy.wake import Waker
from api.server.connections import MAX_AUTH_BYTES
from shared.errors import NotFound, Unauthenticated, WorkspaceError
from shared.observability import failpoints
from shared.sandboxes.access import SandboxAccess
from shared.sandboxes.availability import agent_server

log = structlog.get_logger()

# How long the agent server waits for a key, too.
KEY_SECONDS = 10.0
CLOSE_SECONDS = 5.0
# Of one user, in each API process.
MAX_OF_ONE = 200
# Of one message, in either direction: what uvicorn takes on both sides.
MAX_BYTES = 16 * 1024 * 1024
# A reason for a close is 123 bytes at most.
MAX_REASON_LENGTH = 120

# The agent server's own words for a wrong key and for what is not there (wire contract 3.5); else those of RFC 6455.
WRONG_KEY, NOT_THERE, BAD_GATEWAY, TRY_AGAIN = 4001, 4004, 1014, 1013
CODES: dict[type[WorkspaceError], int] = {Unauthenticated: WRONG_KEY, NotFound: NOT_THERE, BadGateway: BAD_GATEWAY}
# What the library reports where no code came, and what to say then to the other side: these can't be sent.
UNSENDABLE = {1005: 1000, 1006: 1001, 1015: 1001}

Close = tuple[int, str]


class NoRedirectConnect(connect):
    """A connection to where it was asked for: a redirect would lead us, who reach more than sandboxes do, elsewhere."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        """What the library is to raise, or the address to go to instead: none is followed."""
        return exc


class ClientDisconnected(Exception):
    """The client has closed its side, or is gone."""

    def __init__(self, message: Any) -> None:
        self.close: Close = (message.get("code") or 1005, message.get("reason") or "")


class WebSocketProxy:
    """The websockets of one process."""

    def __init__(self, context: Context, access: AccessCheck, waker: Waker, uses: ActivityRecorder) -> None:
        """Serve with these parts."""
        self._vault, self._agent_servers = context.vault, context.agent_servers
        self._access, self._waker, self._uses = access, waker, uses
        self._shares = Shares(MAX_OF_ONE, "websockets")

    async def serve(self, proxied: ProxyRequest, receive: Receive, send: Send, allow_long: Callable[[], None]) -> None:
        """Serve one websocket until one side closes it.

        Args:
            visit: how it began.
            receive: the client's messages.
            send: to the client.
            allow_long: is called if the first message need not be short.
        """
        if proxied.has_key:
            allow_long()
        await receive()  # that it wants to connect
        with suppress(ClientDisconnected, OSError):
            await send({"type": "websocket.accept"})
            code, reason = await self._serve_or_refuse(proxied, receive, send)
            text = reason.encode()[:MAX_REASON_LENGTH].decode(errors="ignore")
            await send({"type": "websocket.close", "code": UNSENDABLE.get(code, code), "reason": text})

    async def _serve_or_refuse(self, proxied: ProxyRequest, receive: Receive, send: Send) -> Close:
        try:
            proxied = proxied if proxied.has_key else proxied.with_session_key(await _read_key(receive))
            seen = await self._ensure_running(proxied)
            with self._shares.taking(seen.owner_id):
                return await self._serve(proxied, seen, receive, send)
        except WorkspaceError as error:
            return next((CODES[kind] for kind in CODES if isinstance(error, kind)), TRY_AGAIN), str(error)
        except SQLAlchemyError as error:
            log.warning("store_unavailable", path=proxied.path, error=type(error).__name__)
            return TRY_AGAIN, "the store does not answer; try again"

    async def _serve(self, proxied: ProxyRequest, seen: SandboxAccess, receive: Receive, send: Send) -> Close:
        async with self._connected(proxied, seen) as server:
            upwards = asyncio.create_task(self._pass_up(proxied, receive, server))
            downwards = asyncio.create_task(_pass_down(self._frames(proxied, seen, server), server, send))
            try:
                await asyncio.wait({upwards, downwards}, return_when=asyncio.FIRST_COMPLETED)
                return await downwards if downwards.done() else await upwards
            except ClientDisconnected as left:
                code, reason = left.close
                await server.close(UNSENDABLE.get(code, code), reason)
                raise
            finally:
                upwards.cancel()
                downwards.cancel()
                await asyncio.gather(upwards, downwards, return_exceptions=True)

    async def _ensure_running(self, proxied: ProxyRequest) -> SandboxAccess:
        seen = await self._access.look(proxied)
        seen = await self._waker.ensure_running(seen, lambda: self._access.look(proxied))
        self._uses.note(seen)
        return seen

    def _frames(
        self, proxied: ProxyRequest, seen: SandboxAccess, server: ClientConnection
    ) -> AsyncIterable[str | bytes]:
        resend, origin = read_resend(proxied), agent_server(seen.exposed_urls)
        if resend is None or origin is None:
            return server

        async def ask(path: str, params: dict[str, Any]) -> Answer:
            return await self._agent_servers.ask_at(origin, self._key(proxied, seen), "GET", path, params=params)

        return frames(server, resend, ask)

    def _key(self, proxied: ProxyRequest, seen: SandboxAccess) -> str:
        return proxied.session_key or self._vault.decrypt(seen.session_key)

    @asynccontextmanager
    async def _connected(self, proxied: ProxyRequest, seen: SandboxAccess) -> AsyncIterator[ClientConnection]:
        origin = agent_server(seen.exposed_urls)
        if origin is None:
            raise BadGateway(f"sandbox {seen.id} has no agent server")
        key = self._key(proxied, seen)
        try:
            server = await NoRedirectConnect(
                origin.replace("http", "ws", 1) + proxied.target.decode("latin-1"),
                additional_headers=[
                    (name.decode(), value.decode("latin-1")) for name, value in headers.forwarded(proxied)
                ],
                user_agent_header=None,
                compression=None,
                proxy=None,
                open_timeout=CONNECT_SECONDS,
                close_timeout=CLOSE_SECONDS,
                # It must not be given up for being frozen.
                ping_interval=None,
                max_size=MAX_BYTES,
            )
            await server.send(json.dumps({"type": "auth", SESSION_KEY: key}))
        except (OSError, TimeoutError, WebSocketException):
            raise BadGateway(f"sandbox {seen.id}: its agent server does not let this in") from None
        try:
            yield server
        finally:
            await server.close()

    async def _pass_up(self, proxied: ProxyRequest, receive: Receive, server: ClientConnection) -> Close:
        """What the client says; its frames wake the sandbox as requests do.

        Raises:
            Left: it says no more.
        """
        async with aclosing(Pace(lambda: self._ensure_running(proxied))) as pace:
            return await self._pass_frames_up(pace, receive, server)

    async def _pass_frames_up(self, pace: Pace, receive: Receive, server: ClientConnection) -> Close:
        try:
            while True:
                frame = await _receive(receive)
                await pace.step()
                with failpoints.around("agent_server.send_frame"):
                    await server.send(frame)
        except ConnectionClosed:
            return _closed(server)


async def _pass_down(frames: AsyncIterable[str | bytes], server: ClientConnection, send: Send) -> Close:
    """What the agent server says, until it closes."""
    try:
        async for frame in frames:
            kind = "text" if isinstance(frame, str) else "bytes"
            await send({"type": "websocket.send", kind: frame})
    except ConnectionClosed:
        pass
    return _closed(server)


def _closed(server: ClientConnection) -> Close:
    return server.close_code or 1006, server.close_reason or ""


async def _receive(receive: Receive) -> str | bytes:
    message = await receive()
    if message["type"] == "websocket.disconnect":
        raise ClientDisconnected(message)
    text: str | None = message.get("text")
    return message["bytes"] if text is None else text


async def _read_key(receive: Receive) -> str:
    """The key in the first frame, `{"type": "auth", "session_api_key": …}`.

    Raises:
        Unauthenticated: it is something else, or does not come.
    """
    try:
        async with asyncio.timeout(KEY_SECONDS):
            text = await _receive(receive)
        if len(text) > MAX_AUTH_BYTES:
            raise Unauthenticated(f"the first frame must be an auth frame of at most {MAX_AUTH_BYTES} bytes")
        frame = json.loads(text)
        if frame["type"] == "auth" and isinstance(frame[SESSION_KEY], str) and frame[SESSION_KEY]:
            return str(frame[SESSION_KEY])
    except (TimeoutError, ValueError, TypeError, KeyError, RecursionError):
        pass
    raise Unauthenticated("the first frame must be an auth frame with the sandbox's session key")

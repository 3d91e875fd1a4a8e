"""The websocket proxy: it passes frames and close codes in both directions.

It accepts the client before its key is known, as the agent server does (wire contract 3.5): the key may come in the
first frame. Only then does the proxy connect to the agent server, and send the key in its own first frame.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import ExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog
from starlette.types import Receive, Send
from websockets.exceptions import ConnectionClosed, WebSocketException

from api.errors.upstream import TemporarilyUnavailable
from api.limits.addresses import group
from api.limits.buffers import Share
from api.request.context import Context
from api.sandbox_proxy import headers
from api.sandbox_proxy.access import AccessCheck, find_url
from api.sandbox_proxy.activity import ActivityRecorder
from api.sandbox_proxy.chunk_rates import ChunkRate, ChunkRates
from api.sandbox_proxy.event_replay import frames, read_resend
from api.sandbox_proxy.request import SESSION_KEY, ProxyRequest
from api.sandbox_proxy.server_connection import MAX_QUEUE, CountedConnection, SandboxConnect
from api.sandbox_proxy.throttle import Throttle
from api.sandbox_proxy.wake import Waker
from api.server.counted_websockets import Buffers
from api.server.limits import MAX_AUTH_BYTES
from api.server.websockets import KeyLimits
from shared.agent_server.errors import AgentServerError, AgentServerUnreachable
from shared.db.database import StoreError
from shared.errors import NotFound, Unauthenticated, WorkspaceError
from shared.observability import failpoints
from shared.sandboxes.access import SandboxAccess

log = structlog.get_logger()

# A busy agent server, or one that was just resumed, accepts a websocket late. A request to it has no timeout at all.
HANDSHAKE_SECONDS = 30.0
# The timeout of the first frame; the agent server has the same.
KEY_SECONDS = 10.0
CLOSE_SECONDS = 5.0
# Max websockets that wait for their first frame, in each API process. They do not belong to any user yet.
MAX_AWAITING_KEY = 1000
# Max of these from one address.
MAX_AWAITING_OF_ADDRESS = 125
# The max size of a message, in either direction: that of uvicorn, which both sides run.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
# A close reason has at most 123 bytes.
MAX_REASON_BYTES = 120

# The agent server's own codes for a wrong key and for an unknown object (wire contract 3.5), and registered codes.
WRONG_KEY, NOT_FOUND, BAD_GATEWAY, TRY_LATER = 4001, 4004, 1014, 1013
CODES: dict[type[WorkspaceError], int] = {
    Unauthenticated: WRONG_KEY,
    NotFound: NOT_FOUND,
    AgentServerError: BAD_GATEWAY,
}
# Codes that the library reports if no code was received. They can't be sent: the other side gets the mapped ones.
UNSENDABLE = {1005: 1000, 1006: 1001, 1015: 1001}

Close = tuple[int, str]


class ClientDisconnected(Exception):
    """The client closed the websocket, or lost its connection."""

    def __init__(self, message: Any) -> None:
        self.close: Close = (message.get("code") or 1005, message.get("reason") or "")


@dataclass(frozen=True)
class Client:
    """The client's side of a websocket, and the share of its user's bytes."""

    receive: Receive
    send: Send
    buffers: Buffers
    share: Share


class WebSocketProxy:
    """Serves the websockets of one process."""

    def __init__(self, context: Context, access: AccessCheck, waker: Waker, activity: ActivityRecorder) -> None:
        self._vault, self._agent_servers, self._door = context.vault, context.agent_servers, context.door
        self._tls = context.door.tls()
        self._access, self._waker, self._activity = access, waker, activity
        self._limit, self._bytes = context.limits.websockets, context.limits.websocket_bytes
        self._chunk_rates = ChunkRates()
        # By address.
        self._awaiting_key = Counter[str]()

    async def serve(
        self, proxied: ProxyRequest, receive: Receive, send: Send, limits: KeyLimits, buffers: Buffers
    ) -> None:
        """Serve one websocket until one side closes it. It counts for the sandbox's owner until its close is sent.

        Args:
            limits: lets the client send long messages once its key has been checked.
            buffers: reports the bytes received from the client, and waits until the client has read what was sent.
        """
        if proxied.has_key:
            limits.hold()
        await receive()  # the connect message
        with suppress(ClientDisconnected, OSError), ExitStack() as held:
            await send({"type": "websocket.accept"})
            code, reason = await self._serve_or_close(proxied, receive, send, limits, buffers, held)
            text = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
            await send({"type": "websocket.close", "code": UNSENDABLE.get(code, code), "reason": text})

    async def _serve_or_close(
        self, proxied: ProxyRequest, receive: Receive, send: Send, limits: KeyLimits, buffers: Buffers, held: ExitStack
    ) -> Close:
        try:
            if not proxied.has_key:
                proxied = replace(proxied, session_key=await self._await_key(proxied, receive))
            owner_id = (await self._access.check(proxied)).owner_id
            held.enter_context(self._limit.hold(owner_id))
            share = held.enter_context(self._bytes.share(owner_id))
            limits.lift()
            buffers.watch(partial(share.note, "received from the client"))
            client = Client(receive, send, buffers, share)
            return await share.run(self._wake_and_serve(proxied, client))
        except WorkspaceError as error:
            return next((CODES[kind] for kind in CODES if isinstance(error, kind)), TRY_LATER), str(error)
        except StoreError as error:
            log.warning("store_unavailable", path=proxied.path, error=type(error).__name__)
            return TRY_LATER, "the store does not respond; retry"

    async def _await_key(self, proxied: ProxyRequest, receive: Receive) -> str:
        awaiting, address = self._awaiting_key, group(proxied.client or "")
        if awaiting.total() >= MAX_AWAITING_KEY or awaiting[address] >= MAX_AWAITING_OF_ADDRESS:
            raise TemporarilyUnavailable("too many websockets wait for their first frame; retry")
        awaiting[address] += 1
        try:
            return await _read_key(receive)
        finally:
            awaiting[address] -= 1
            if not awaiting[address]:
                del awaiting[address]

    async def _wake_and_serve(self, proxied: ProxyRequest, client: Client) -> Close:
        sandbox = await self._ensure_running(proxied)
        async with self._connected(proxied, sandbox, client.share) as server:
            upwards = asyncio.create_task(self._pass_up(proxied, client, server))
            frames_down, rate = self._frames(proxied, sandbox, server, client.share), self._chunk_rates.find(sandbox.id)
            downwards = asyncio.create_task(_pass_down(frames_down, server, client, rate))
            checks = asyncio.create_task(self._access.recheck(proxied))
            try:
                await asyncio.wait({upwards, downwards, checks}, return_when=asyncio.FIRST_COMPLETED)
                return await next(task for task in (downwards, upwards, checks) if task.done())
            except ClientDisconnected as left:
                code, reason = left.close
                await server.close(UNSENDABLE.get(code, code), reason)
                raise
            finally:
                for task in (upwards, downwards, checks):
                    task.cancel()
                await asyncio.gather(upwards, downwards, checks, return_exceptions=True)

    async def _ensure_running(self, proxied: ProxyRequest) -> SandboxAccess:
        sandbox = await self._access.check(proxied)
        sandbox = await self._waker.ensure_running(sandbox, lambda: self._access.check(proxied))
        self._activity.record(sandbox)
        return sandbox

    def _frames(
        self, proxied: ProxyRequest, sandbox: SandboxAccess, server: CountedConnection, share: Share
    ) -> AsyncIterable[str | bytes]:
        resend, origin = None if proxied.port else read_resend(proxied), find_url(proxied, sandbox)
        if resend is None:
            return server
        fetch = partial(self._agent_servers.exchange_at, origin, self._key(proxied, sandbox), "GET")
        return frames(server, resend, fetch, partial(share.note, "replayed"))

    def _key(self, proxied: ProxyRequest, sandbox: SandboxAccess) -> str:
        return proxied.session_key or self._vault.decrypt(sandbox.session_key)

    @asynccontextmanager
    async def _connected(
        self, proxied: ProxyRequest, sandbox: SandboxAccess, share: Share
    ) -> AsyncIterator[CountedConnection]:
        origin, key = find_url(proxied, sandbox), self._key(proxied, sandbox)
        try:
            server = await SandboxConnect(
                origin.replace("http", "ws", 1) + proxied.target.decode("latin-1"),
                additional_headers=[
                    *self._door.headers.items(),
                    *((name.decode(), value.decode("latin-1")) for name, value in headers.forwarded(proxied)),
                ],
                ssl=self._tls if origin.startswith("https:") else None,
                user_agent_header=None,
                compression=None,
                proxy=None,
                open_timeout=HANDSHAKE_SECONDS,
                close_timeout=CLOSE_SECONDS,
                # A paused sandbox does not respond to pings, but its connection must stay open.
                ping_interval=None,
                max_size=MAX_MESSAGE_BYTES,
                max_queue=MAX_QUEUE,
                create_connection=CountedConnection,
            )
            assert isinstance(server, CountedConnection)  # noqa: S101 - the library makes no other
            server.watch(partial(share.note, "received from the sandbox"))
            if proxied.port is None:
                await server.send(json.dumps({"type": "auth", SESSION_KEY: key}))
        except (OSError, TimeoutError, WebSocketException):
            raise AgentServerUnreachable(
                f"sandbox {sandbox.id}: its agent server does not accept this websocket"
            ) from None
        try:
            yield server
        finally:
            if share.is_exceeded:
                server.transport.abort()
            await server.close()

    async def _pass_up(self, proxied: ProxyRequest, client: Client, server: CountedConnection) -> Close:
        """Pass the client's frames to the agent server. They wake the sandbox, as requests do.

        Raises:
            ClientDisconnected: the client is gone.
        """
        async with aclosing(Throttle(lambda: self._ensure_running(proxied))) as wake:
            return await self._pass_frames_up(wake, client, server)

    async def _pass_frames_up(self, wake: Throttle, client: Client, server: CountedConnection) -> Close:
        try:
            while True:
                frame = await _receive(client.receive)
                with client.share.hold("to the sandbox", frame):
                    await wake.call()
                    with failpoints.around("agent_server.send_frame"):
                        await server.send_in_time(frame)
        except ConnectionClosed:
            return _closed(server)


async def _pass_down(
    frames: AsyncIterable[str | bytes], server: CountedConnection, client: Client, rate: ChunkRate
) -> Close:
    try:
        async for frame in frames:
            with client.share.hold("to the client", frame):
                kind = "text" if isinstance(frame, str) else "bytes"
                await client.send({"type": "websocket.send", kind: frame})
                # The frame stays in the connection's buffer until the client has read it.
                await client.buffers.drained()
            await rate.limit(frame)
    except ConnectionClosed:
        pass
    return _closed(server)


def _closed(server: CountedConnection) -> Close:
    """The agent server's close; or this side's own, for example of a message that is too large."""
    close = server.protocol.close_rcvd or server.protocol.close_sent
    return (close.code, close.reason) if close else (1006, "")


async def _receive(receive: Receive) -> str | bytes:
    message = await receive()
    if message["type"] == "websocket.disconnect":
        raise ClientDisconnected(message)
    text: str | None = message.get("text")
    return message["bytes"] if text is None else text


async def _read_key(receive: Receive) -> str:
    """Read the key from the first frame, `{"type": "auth", "session_api_key": …}`."""
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

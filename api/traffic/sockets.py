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

from api.agent_servers import Answer
from api.connections import MAX_AUTH_BYTES
from api.context import Context
from api.traffic import headers
from api.traffic.door import Door
from api.traffic.errors import Unanswered
from api.traffic.exchange import CONNECT_SECONDS
from api.traffic.pace import Pace
from api.traffic.resending import frames, read_resend
from api.traffic.shares import Shares
from api.traffic.uses import Uses
from api.traffic.visit import SESSION_KEY, Visit
from api.traffic.waking import Waker
from shared import failpoints
from shared.errors import NotFound, Unauthenticated, WorkspaceError
from shared.store.traffic import Seen
from shared.traffic import agent_server

log = structlog.get_logger()

# How long the agent server waits for a key, too.
KEY_SECONDS = 10.0
CLOSE_SECONDS = 5.0
# Of one user, in each API process.
MAX_OF_ONE = 200
# Of one message, in either direction: what uvicorn takes on both sides.
MOST_BYTES = 16 * 1024 * 1024
# A reason for a close is 123 bytes at most.
LONGEST_REASON = 120

# The agent server's own words for a wrong key and for what is not there (wire contract 3.5); else those of RFC 6455.
WRONG_KEY, NOT_THERE, BAD_GATEWAY, TRY_AGAIN = 4001, 4004, 1014, 1013
CODES: dict[type[WorkspaceError], int] = {Unauthenticated: WRONG_KEY, NotFound: NOT_THERE, Unanswered: BAD_GATEWAY}
# What the library reports where no code came, and what to say then to the other side: these can't be sent.
UNSENDABLE = {1005: 1000, 1006: 1001, 1015: 1001}

Close = tuple[int, str]


class Straight(connect):
    """A connection to where it was asked for: a redirect would lead us, who reach more than sandboxes do, elsewhere."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        """What the library is to raise, or the address to go to instead: none is followed."""
        return exc


class Left(Exception):
    """The client has closed its side, or is gone."""

    def __init__(self, message: Any) -> None:
        self.close: Close = (message.get("code") or 1005, message.get("reason") or "")


class Sockets:
    """The websockets of one process."""

    def __init__(self, here: Context, door: Door, waker: Waker, uses: Uses) -> None:
        """Serve with these parts."""
        self._vault, self._agent_servers = here.vault, here.agent_servers
        self._door, self._waker, self._uses = door, waker, uses
        self._shares = Shares(MAX_OF_ONE, "websockets")

    async def serve(self, visit: Visit, receive: Receive, send: Send, allow_long: Callable[[], None]) -> None:
        """Serve one websocket until one side closes it.

        Args:
            visit: how it began.
            receive: the client's messages.
            send: to the client.
            allow_long: is called if the first message need not be short.
        """
        if visit.has_key:
            allow_long()
        await receive()  # that it wants to connect
        with suppress(Left, OSError):
            await send({"type": "websocket.accept"})
            code, reason = await self._serve_or_refuse(visit, receive, send)
            text = reason.encode()[:LONGEST_REASON].decode(errors="ignore")
            await send({"type": "websocket.close", "code": UNSENDABLE.get(code, code), "reason": text})

    async def _serve_or_refuse(self, visit: Visit, receive: Receive, send: Send) -> Close:
        try:
            visit = visit if visit.has_key else visit.with_session_key(await _read_key(receive))
            seen = await self._rouse(visit)
            with self._shares.taking(seen.owner_id):
                return await self._serve(visit, seen, receive, send)
        except WorkspaceError as error:
            return next((CODES[kind] for kind in CODES if isinstance(error, kind)), TRY_AGAIN), str(error)
        except SQLAlchemyError as error:
            log.warning("store_unavailable", path=visit.path, error=type(error).__name__)
            return TRY_AGAIN, "the store does not answer; try again"

    async def _serve(self, visit: Visit, seen: Seen, receive: Receive, send: Send) -> Close:
        async with self._connected(visit, seen) as server:
            upwards = asyncio.create_task(self._pass_up(visit, receive, server))
            downwards = asyncio.create_task(_pass_down(self._frames(visit, seen, server), server, send))
            try:
                await asyncio.wait({upwards, downwards}, return_when=asyncio.FIRST_COMPLETED)
                return await downwards if downwards.done() else await upwards
            except Left as left:
                code, reason = left.close
                await server.close(UNSENDABLE.get(code, code), reason)
                raise
            finally:
                upwards.cancel()
                downwards.cancel()
                await asyncio.gather(upwards, downwards, return_exceptions=True)

    async def _rouse(self, visit: Visit) -> Seen:
        seen = await self._door.look(visit)
        seen = await self._waker.rouse(seen, lambda: self._door.look(visit))
        self._uses.note(seen)
        return seen

    def _frames(self, visit: Visit, seen: Seen, server: ClientConnection) -> AsyncIterable[str | bytes]:
        resend, origin = read_resend(visit), agent_server(seen.exposed_urls)
        if resend is None or origin is None:
            return server

        async def ask(path: str, params: dict[str, Any]) -> Answer:
            return await self._agent_servers.ask_at(origin, self._key(visit, seen), "GET", path, params=params)

        return frames(server, resend, ask)

    def _key(self, visit: Visit, seen: Seen) -> str:
        return visit.session_key or self._vault.decrypt(seen.session_key)

    @asynccontextmanager
    async def _connected(self, visit: Visit, seen: Seen) -> AsyncIterator[ClientConnection]:
        origin = agent_server(seen.exposed_urls)
        if origin is None:
            raise Unanswered(f"sandbox {seen.id} has no agent server")
        key = self._key(visit, seen)
        try:
            server = await Straight(
                origin.replace("http", "ws", 1) + visit.target.decode("latin-1"),
                additional_headers=[
                    (name.decode(), value.decode("latin-1")) for name, value in headers.forwarded(visit)
                ],
                user_agent_header=None,
                compression=None,
                proxy=None,
                open_timeout=CONNECT_SECONDS,
                close_timeout=CLOSE_SECONDS,
                # It must not be given up for being frozen.
                ping_interval=None,
                max_size=MOST_BYTES,
            )
            await server.send(json.dumps({"type": "auth", SESSION_KEY: key}))
        except (OSError, TimeoutError, WebSocketException):
            raise Unanswered(f"sandbox {seen.id}: its agent server does not let this in") from None
        try:
            yield server
        finally:
            await server.close()

    async def _pass_up(self, visit: Visit, receive: Receive, server: ClientConnection) -> Close:
        """What the client says; its frames wake the sandbox as requests do.

        Raises:
            Left: it says no more.
        """
        async with aclosing(Pace(lambda: self._rouse(visit))) as pace:
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
        raise Left(message)
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

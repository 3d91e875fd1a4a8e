"""An agent server behind a real socket that echoes requests, for tests of the sandbox proxy.

`/stream` sends one piece for each count in `pieces`. A websocket sends its own target, unless an agent is busy, and
then echoes each frame.
"""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


@dataclass
class ReceivedRequest:
    """A received request."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body_bytes: int = 0
    body_sha: str = ""

    def header(self, name: str) -> str | None:
        """Return the header of this name, if there is exactly one."""
        found = [value for key, value in self.headers if key == name]
        return found[0] if len(found) == 1 else None


@dataclass
class TrafficServer:
    """The ASGI application; `got` records the received requests."""

    key: str = ""
    got: list[ReceivedRequest] = field(default_factory=list)
    # Number of pieces that a stream may send, and number of streams whose readers have disconnected.
    pieces: int = 0
    left: int = 0
    # Whether an agent is busy. While it is, a websocket gets no frame.
    steps: bool = False
    # Whether searches for events get no response.
    hangs: bool = False
    # Events of any conversation, one per page.
    events: list[dict[str, Any]] = field(default_factory=list)
    closed_with: list[tuple[int, str]] = field(default_factory=list)
    # Client ports of the connections.
    peers: set[int] = field(default_factory=set)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._answer(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._serve_websocket(scope, receive, send)
        else:
            await _live(receive, send)

    async def _answer(self, scope: Any, receive: Receive, send: Send) -> None:
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        query = scope["query_string"].decode()
        target = scope["raw_path"].decode() + (f"?{query}" if query else "")
        got = ReceivedRequest(scope["method"], target, headers)
        self.peers.add(scope["client"][1])
        await _read(got, receive)
        self.got.append(got)
        if got.header("x-session-api-key") != self.key:
            await _reply(send, 401, b'{"detail":"Unauthorized"}')
        elif scope["path"] == "/stream":
            await self._stream(receive, send)
        elif scope["path"] == "/moved":
            location = f"http://{got.header('host')}/moved/" if "absolute" in query else "/moved/"
            await _reply(send, 307, b"", (b"location", location.encode()))
        elif scope["path"].endswith("/events/search"):
            while self.hangs:  # noqa: ASYNC110 - another thread ends it
                await asyncio.sleep(0.005)
            await _reply(send, 200, json.dumps(self._page(scope["query_string"].decode())).encode())
        elif scope["path"] == "/broken":
            await _begin(send, 200, (b"content-length", b"100"))
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
        else:
            extra = [(b"set-cookie", b"a=b"), (b"x-own", b"kept"), (b"keep-alive", b"timeout=5")]
            extra += [(b"cache-control", b"public"), (b"expires", b"0"), (b"access-control-allow-origin", b"*")]
            extra += [(b"clear-site-data", b'"*"'), (b"content-security-policy", b"default-src *")]
            await _reply(send, 200, json.dumps({"target": target, "sha": got.body_sha}).encode(), *extra)

    def _page(self, query: str) -> dict[str, Any]:
        at = int(dict(parse_qsl(query)).get("page_id", 0))
        after = at + 1 if at + 1 < len(self.events) else None
        return {"items": self.events[at : at + 1], "next_page_id": None if after is None else str(after)}

    async def _stream(self, receive: Receive, send: Send) -> None:
        await _begin(send, 200, (b"content-type", b"text/event-stream"))
        sent = 0
        leaving = asyncio.ensure_future(receive())
        while not leaving.done():
            if sent < self.pieces:
                sent += 1
                await send({"type": "http.response.body", "body": f"data: {sent}\n\n".encode(), "more_body": True})
            await asyncio.sleep(0.005)
        self.left += 1

    async def _serve_websocket(self, scope: Any, receive: Receive, send: Send) -> None:
        await receive()
        if scope["path"] == "/refused":
            await send({"type": "websocket.close"})
            return
        await send({"type": "websocket.accept"})
        first = json.loads((await receive())["text"])
        if first != {"type": "auth", "session_api_key": self.key}:
            await send({"type": "websocket.close", "code": 4001, "reason": "Authentication failed"})
            return
        target = scope["raw_path"].decode() + "?" + scope["query_string"].decode()
        while self.steps:  # noqa: ASYNC110 - another thread ends it
            await asyncio.sleep(0.005)
        await send({"type": "websocket.send", "text": target})
        await self._echo(receive, send)

    async def _echo(self, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] != "websocket.disconnect":
            if message.get("text") == "close":
                await send({"type": "websocket.close", "code": 4004, "reason": "requested"})
            else:
                kind = "bytes" if message.get("text") is None else "text"
                await send({"type": "websocket.send", kind: message[kind]})
        self.closed_with.append((message.get("code") or 0, message.get("reason") or ""))


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _read(got: ReceivedRequest, receive: Receive) -> None:
    digest, more = hashlib.sha256(), True
    while more:
        message = await receive()
        digest.update(message.get("body", b""))
        got.body_bytes += len(message.get("body", b""))
        more = message.get("more_body", False)
    got.body_sha = digest.hexdigest()


async def _begin(send: Send, status: int, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})


async def _reply(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    await _begin(send, status, (b"content-length", str(len(body)).encode()), *headers)
    await send({"type": "http.response.body", "body": body})

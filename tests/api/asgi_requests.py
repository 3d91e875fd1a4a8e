"""Requests to an application without a server or a client between: what it reads, and when, is seen."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

TICK_SECONDS = 0.005

Receive = Callable[[], Awaitable[dict[str, Any]]]


class Exchange:
    """One request, and what came of it."""

    def __init__(self, method: str, path: str, headers: dict[str, str]) -> None:
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "server": ("testserver", 80),
            "client": ("testclient", 1),
            "state": {},
        }
        self.status = 0
        self.body = b""
        # How often the body was asked for.
        self.reads = 0

    async def run(self, app: Any, receive: Receive) -> None:
        """Have it answered."""

        async def counting() -> dict[str, Any]:
            self.reads += 1
            return await receive()

        async def send(message: dict[str, Any]) -> None:
            self.status = message.get("status", self.status)
            self.body += message.get("body", b"")

        await app(self._scope, counting, send)


def body_of(content: bytes) -> Receive:
    """A body that is there at once; then the caller waits."""
    messages = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()
        raise AssertionError("the client does not disconnect")

    return receive


async def never() -> dict[str, Any]:
    """A body of which nothing comes."""
    await asyncio.Event().wait()
    raise AssertionError("it has come")


def longest_stall(work: Awaitable[None]) -> float:
    """Do this on an event loop, and say for how many seconds at most nothing else had its turn."""

    async def measure() -> float:
        loop = asyncio.get_running_loop()
        longest, working, before = 0.0, asyncio.ensure_future(work), loop.time()
        while not working.done():
            await asyncio.sleep(TICK_SECONDS)
            longest, before = max(longest, loop.time() - before), loop.time()
        await working
        return longest

    return asyncio.run(measure())

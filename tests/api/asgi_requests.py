"""Direct requests to an ASGI application, without server or client, to observe what it reads and when."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

TICK_SECONDS = 0.005

Receive = Callable[[], Awaitable[dict[str, Any]]]


class AsgiRequest:
    """A request and its response."""

    def __init__(self, method: str, path: str, headers: dict[str, str], query: bytes = b"") -> None:
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query,
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "server": ("testserver", 80),
            "client": ("testclient", 1),
            "state": {},
        }
        self.status = 0
        self.body = b""
        # Number of reads of the body.
        self.reads = 0

    async def run(self, app: Any, receive: Receive, read: asyncio.Event | None = None) -> None:
        """Run the application with the request.

        Args:
            read: set when the client begins to read. Until then, the first piece of the body is not accepted.
        """

        async def count_and_receive() -> dict[str, Any]:
            self.reads += 1
            return await receive()

        async def send(message: dict[str, Any]) -> None:
            self.status = message.get("status", self.status)
            if read is not None and message.get("body"):
                await read.wait()
            self.body += message.get("body", b"")

        await app(self._scope, count_and_receive, send)


def body_of(content: bytes) -> Receive:
    """Return a body that is available immediately; the client stays connected after it."""
    messages = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()
        raise AssertionError("the client does not disconnect")

    return receive


async def never() -> dict[str, Any]:
    """A body that never arrives."""
    await asyncio.Event().wait()
    raise AssertionError("the body arrived")


def measure_max_stall(work: Awaitable[None]) -> float:
    """Run `work` on an event loop; return the longest stall of another task.

    The stall is measured in seconds of this process's CPU time, for all its threads: a thread that holds the
    interpreter's lock stalls the loop, and a machine that is busy with other work does not.
    """

    async def measure() -> float:
        max_stall, working, before = 0.0, asyncio.ensure_future(work), time.process_time()
        while not working.done():
            await asyncio.sleep(TICK_SECONDS)
            now = time.process_time()
            max_stall, before = max(max_stall, now - before), now
        await working
        return max_stall

    return asyncio.run(measure())

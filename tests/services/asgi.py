"""An ASGI application behind a real server, in a thread of this process."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from tests.waiting import eventually

STEP_SECONDS = 0.005
GRACE_SECONDS = 0.2


class PromptServer(uvicorn.Server):
    """A uvicorn server that checks for its end 200 times a second instead of ten times."""

    async def main_loop(self) -> None:
        """Serve until the server is told to stop."""
        await self.on_tick(0)
        while not self.should_exit:  # noqa: ASYNC110 - an attribute, which another thread sets
            await asyncio.sleep(STEP_SECONDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more requests, wait for running ones, cancel those that take too long, and stop the application."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await self._wait_for_requests()
        for task in self.server_state.tasks:
            task.cancel("the server stops")
        await self.lifespan.shutdown()

    async def _wait_for_requests(self) -> None:
        latest = asyncio.get_running_loop().time() + GRACE_SECONDS
        while self.server_state.connections or self.server_state.tasks:
            if asyncio.get_running_loop().time() > latest:
                return
            await asyncio.sleep(STEP_SECONDS)


@contextmanager
def serving(app: Any, **options: Any) -> Iterator[str]:
    """Serve an application for the length of the block; yield its URL."""
    config = uvicorn.Config(
        app,
        port=0,
        log_config=None,
        access_log=False,
        # A test's client is not a trusted proxy.
        **{"proxy_headers": False, **options},
    )
    server = PromptServer(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started or not thread.is_alive(), interval_seconds=0.005)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)

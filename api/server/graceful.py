"""The HTTP server: uvicorn with a graceful shutdown."""

import asyncio
import socket
from collections.abc import Callable

import uvicorn

# Longer than clients usually keep an idle connection (httpx: 5 s): a connection left after that sends no request.
DRAIN_SECONDS = 6.0
# For the first requests of connections accepted during the drain.
LATE_REQUEST_SECONDS = 6.0
POLL_SECONDS = 0.05


class DrainingServer(uvicorn.Server):
    """A server that closes no connection on which a request may be in flight.

    On shutdown uvicorn closes idle connections immediately. A client that sends a request at that moment gets no
    response, and does not know whether the request was executed. So this server first adds `Connection: close` to each
    response for some seconds, and clients close their connections. Requests that wait for something are ended.
    """

    def __init__(self, config: uvicorn.Config, drain: Callable[[], None]) -> None:
        super().__init__(config)
        self._drain = drain

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain the connections, then stop.

        New connections are accepted until the old ones are closed or `DRAIN_SECONDS` have passed. A connection accepted
        last may not have sent its request yet: it has `LATE_REQUEST_SECONDS` for that.
        """
        self._drain()
        self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        old = set(self.server_state.connections)
        await self._wait_until(lambda: self.server_state.connections.isdisjoint(old), DRAIN_SECONDS)
        for server in self.servers:
            server.close()
        await asyncio.sleep(POLL_SECONDS)  # accepted sockets become connections
        await self._wait_until(lambda: self.server_state.connections <= old, LATE_REQUEST_SECONDS)
        await super().shutdown(sockets)

    async def _wait_until(self, holds: Callable[[], bool], seconds: float) -> None:
        for _ in range(round(seconds / POLL_SECONDS)):
            if self.force_exit or holds():
                return
            await asyncio.sleep(POLL_SECONDS)

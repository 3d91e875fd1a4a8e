"""The HTTP server: uvicorn, which takes its leave of each client before it goes."""

import asyncio
import socket
from collections.abc import Callable

import uvicorn

# Longer than clients usually keep an idle connection (httpx: 5 s): who is left after that has nothing to say.
LEAVE_SECONDS = 6.0
# For the requests of those who came meanwhile: they are on their way.
LAST_SECONDS = 6.0
LOOK_SECONDS = 0.05


class DrainingServer(uvicorn.Server):
    """Closes no connection on which a request may be on its way.

    uvicorn closes idle connections at once when it is told to stop; a client that sends on one at that moment gets no
    answer, and does not know whether its request was carried out. So each answer says `Connection: close` for a while
    first: clients leave by themselves. Requests that wait for something else are told to come to an end.
    """

    def __init__(self, config: uvicorn.Config, leave: Callable[[], None]) -> None:
        """Serve; `leave` ends what waits."""
        super().__init__(config)
        self._leave = leave

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ask every client to leave, and accept others until they have or some seconds have passed.

        Who was accepted last may not have said a word yet: it has, until it was answered or some seconds have passed.
        """
        self._leave()
        self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        old = set(self.server_state.connections)
        await self._wait_until(lambda: self.server_state.connections.isdisjoint(old), LEAVE_SECONDS)
        for server in self.servers:
            server.close()
        await asyncio.sleep(LOOK_SECONDS)  # what was accepted before becomes a connection
        await self._wait_until(lambda: self.server_state.connections <= old, LAST_SECONDS)
        await super().shutdown(sockets)

    async def _wait_until(self, holds: Callable[[], bool], seconds: float) -> None:
        for _ in range(round(seconds / LOOK_SECONDS)):
            if self.force_exit or holds():
                return
            await asyncio.sleep(LOOK_SECONDS)

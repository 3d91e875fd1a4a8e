"""A unix socket in front of a server's, which simulates a network between a process and the server."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

CHUNK_BYTES = 65536

Carry = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


class Network:
    """The event loop of all links, in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        """Run a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def listen(self, path: Path, carry: Carry) -> None:
        """Accept connections at a socket, and handle each with a coroutine."""
        self.run(self._listen(path, carry)).result(10)
        path.chmod(0o666)

    def close(self) -> None:
        """End the loop and all coroutines."""
        self.run(self._end()).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self, path: Path, carry: Carry) -> None:
        self._servers.append(await asyncio.start_unix_server(carry, path))

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        carriers = asyncio.all_tasks() - {asyncio.current_task()}
        for carrier in carriers:
            carrier.cancel()
        await asyncio.gather(*carriers, return_exceptions=True)


class Link:
    """Forwards bytes between the clients of a socket and a server; a partition stops them in both directions.

    During a partition, connections stay open and new ones are accepted, but no byte passes. Neither side is notified.
    """

    def __init__(self, network: Network, path: Path, server: Path) -> None:
        self.path = path
        self._network, self._server = network, server
        self._passing = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._passing.set()
        network.listen(path, self._carry)

    def partition(self) -> None:
        """Stop forwarding."""
        self._network.run(self._set(passing=False)).result(10)

    def heal(self, *, reset: bool) -> None:
        """Resume forwarding.

        Args:
            reset: close the existing connections, as a firewall that lost their state does; otherwise forward the bytes
                of the partition.
        """
        self._network.run(self._set(passing=True, reset=reset)).result(10)

    async def _set(self, *, passing: bool, reset: bool = False) -> None:
        if reset:
            for writer in self._writers:
                writer.transport.abort()
        if passing:
            self._passing.set()
        else:
            self._passing.clear()

    async def _carry(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        ends = {to_client}
        self._writers.add(to_client)
        try:
            await self._passing.wait()
            server, to_server = await asyncio.open_unix_connection(self._server)
            ends.add(to_server)
            self._writers.add(to_server)
            await asyncio.gather(self._pump(client, to_server), self._pump(server, to_client))
        except (OSError, asyncio.CancelledError):  # the server is down, or the network ends: close both sides
            to_client.transport.abort()
        finally:
            self._writers -= ends
            for end in ends:
                end.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(CHUNK_BYTES):
                await self._passing.wait()
                sink.write(data)
                await sink.drain()
        with suppress(OSError):
            sink.write_eof()


@contextmanager
def running_network() -> Iterator[Network]:
    """Run a network for links, for the length of the block."""
    network = Network()
    try:
        yield network
    finally:
        network.close()

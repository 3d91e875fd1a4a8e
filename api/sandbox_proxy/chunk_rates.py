"""Rate limits of what each sandbox sends: a flood of tiny chunks or frames would block the event loop for all others.

Each chunk costs the loop some time, however small it is. A sandbox may send a burst, and then more chunks per second
than any event stream or terminal needs. Beyond that rate the proxy pauses its reads, and the sandbox's connection fills
up: nothing is lost.
"""

from asyncio import get_running_loop, sleep
from weakref import WeakValueDictionary

from shared.agent_server.limits import FREE_CHUNKS, MIN_CHUNK_BYTES

# Chunks of all connections to a sandbox. They take a tenth of a processor's time.
PER_SECOND = 5000
# Long enough for hundreds of chunks: a wait for each chunk would cost more than the chunk itself.
PAUSE_SECONDS = 0.05


class ChunkRate:
    """The chunk rate of one sandbox, over all its connections."""

    def __init__(self) -> None:
        # When the chunks so far would have been sent at an even rate, by the event loop's clock.
        self._even_at = 0.0

    async def limit(self, chunk: str | bytes) -> None:
        """Count a chunk, and wait if the sandbox is too fast. A large chunk costs nothing."""
        now = get_running_loop().time()
        cost = max(0.0, 1 - len(chunk) / MIN_CHUNK_BYTES)
        self._even_at = max(self._even_at, now) + cost / PER_SECOND
        if cost and self._even_at - now > FREE_CHUNKS / PER_SECOND:
            await sleep(PAUSE_SECONDS)


class ChunkRates:
    """The chunk rates of all sandboxes that send data."""

    def __init__(self) -> None:
        self._of = WeakValueDictionary[str, ChunkRate]()

    def find(self, sandbox_id: str) -> ChunkRate:
        """Return the sandbox's chunk rate. The entry exists as long as a caller holds it."""
        return self._of.setdefault(sandbox_id, ChunkRate())

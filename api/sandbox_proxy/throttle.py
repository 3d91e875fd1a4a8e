"""A throttle for a call that is too expensive for each frame: it runs once a second at most.

Frames that come within that second cause one more run when the second is over.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from shared.db.database import StoreError
from shared.errors import WorkspaceError

SECONDS = 1.0


class Throttle:
    """Limits how often a function runs."""

    def __init__(self, act: Callable[[], Awaitable[object]]) -> None:
        self._act = act
        self._next_at = 0.0
        self._late: asyncio.Task[None] | None = None

    async def call(self) -> None:
        """Run the act now, or schedule it for the end of the current second."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._next_at:
            self._next_at = loop.time() + SECONDS
            await self._act()
        elif self._late is None or self._late.done():
            self._late = loop.create_task(self._act_late())

    async def aclose(self) -> None:
        """Cancel a scheduled run."""
        if self._late is not None:
            self._late.cancel()
            await asyncio.gather(self._late, return_exceptions=True)

    async def _act_late(self) -> None:
        await asyncio.sleep(self._next_at - asyncio.get_running_loop().time())
        self._next_at = asyncio.get_running_loop().time() + SECONDS
        with suppress(WorkspaceError, StoreError):  # the act for the next frame raises it
            await self._act()

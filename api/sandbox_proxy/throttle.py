"""Something that is to be done for each frame, but costs too much for that: it is done at most once in a second.

What comes in that second is not forgotten: it is done once more when the second is over.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from sqlalchemy.exc import SQLAlchemyError

from shared.errors import WorkspaceError

SECONDS = 1.0


class Pace:
    """One caller's."""

    def __init__(self, act: Callable[[], Awaitable[object]]) -> None:
        """Do this, as often as is right."""
        self._act = act
        self._next_at = 0.0
        self._late: asyncio.Task[None] | None = None

    async def step(self) -> None:
        """Do it now, or see to it that it is done soon."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._next_at:
            self._next_at = loop.time() + SECONDS
            await self._act()
        elif self._late is None or self._late.done():
            self._late = loop.create_task(self._act_late())

    async def aclose(self) -> None:
        """Do it no more."""
        if self._late is not None:
            self._late.cancel()
            await asyncio.gather(self._late, return_exceptions=True)

    async def _act_late(self) -> None:
        await asyncio.sleep(self._next_at - asyncio.get_running_loop().time())
        self._next_at = asyncio.get_running_loop().time() + SECONDS
        with suppress(WorkspaceError, SQLAlchemyError):  # the act for the next frame raises it
            await self._act()

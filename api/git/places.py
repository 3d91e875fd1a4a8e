"""Slots ("places") for each user's concurrent requests, so that one user's slow hosts can't block other users."""

import asyncio
from weakref import WeakValueDictionary

from shared.sql.write_slots import caller


class CallerPlaces:
    """A number of places for each caller. A caller without a free one waits."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._places = WeakValueDictionary[str | None, asyncio.Semaphore]()

    def of_caller(self) -> asyncio.Semaphore:
        """The places of this context's caller."""
        return self._places.setdefault(caller.get(), asyncio.Semaphore(self._most))

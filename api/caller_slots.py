"""Slots for each user's concurrent work, so that one user's slow work can't block other users."""

import asyncio
from weakref import WeakValueDictionary

from shared.sql.write_slots import caller


class CallerSlots:
    """A number of slots for each caller. A caller without a free one waits."""

    def __init__(self, max_slots: int) -> None:
        self._max_slots = max_slots
        self._slots = WeakValueDictionary[str | None, asyncio.Semaphore]()

    def of_caller(self) -> asyncio.Semaphore:
        return self.of(caller.get())

    def of(self, caller_id: str | None) -> asyncio.Semaphore:
        return self._slots.setdefault(caller_id, asyncio.Semaphore(self._max_slots))

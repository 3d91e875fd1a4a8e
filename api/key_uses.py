"""When keys were used last: of requests that come together, one writes it down for all."""

from starlette.concurrency import run_in_threadpool

from shared.database import Database
from shared.store import users


class KeyUses:
    """The uses of keys that this process writes down, on its event loop."""

    def __init__(self, database: Database) -> None:
        """Write them down in this store."""
        self._database = database
        # What is being written. The others need not wait for it, nor for each other: it is one row.
        self._writing: set[str] = set()

    async def note(self, key_id: str) -> None:
        """The key is used now, and that is worth writing down.

        Raises:
            SQLAlchemyError: it could not be written; only who writes is told.
        """
        if key_id in self._writing:
            return
        self._writing.add(key_id)
        try:
            await run_in_threadpool(users.record_use, self._database, key_id)
        finally:
            self._writing.discard(key_id)

"""Who may send traffic to a sandbox. That is found out before anything is woken, with one query."""

from starlette.concurrency import run_in_threadpool

from api.context import Context
from api.traffic.visit import Visit
from shared.errors import Unauthenticated
from shared.models import ApiKey
from shared.store import traffic, users
from shared.store.traffic import Seen

KEY_NEEDED = "a key is needed: X-Session-API-Key: <the sandbox's>, or Authorization: Bearer <its owner's>"


class Door:
    """Looks at a sandbox with the eyes of whoever calls."""

    def __init__(self, here: Context) -> None:
        """Look into this process's store."""
        self._here = here

    async def look(self, visit: Visit) -> Seen:
        """The sandbox as it is now.

        Raises:
            Unauthenticated: no key, or a wrong one; whether there is such a sandbox is not said.
            NotFound: it is deleted; or to a user: there is none, or it is somebody else's.
        """
        if not visit.has_key:
            raise Unauthenticated(KEY_NEEDED)
        seen, key = await run_in_threadpool(self._look, visit)
        if key is not None and users.is_use_stale(key):
            await self._here.key_uses.note(key.id)
        return seen

    def _look(self, visit: Visit) -> tuple[Seen, ApiKey | None]:
        vault = self._here.vault
        with self._here.database.reading() as session:
            if visit.session_key:
                return traffic.see_by_session_key(session, vault, visit.sandbox_id, visit.session_key), None
            return traffic.see_by_api_key(session, vault, visit.sandbox_id, visit.api_key or "")

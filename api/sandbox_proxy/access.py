"""Who may send traffic to a sandbox. That is found out before anything is woken, with one query."""

from starlette.concurrency import run_in_threadpool

from api.request.context import Context
from api.sandbox_proxy.request import ProxyRequest
from shared.errors import Unauthenticated
from shared.models import ApiKey
from shared.sandboxes import access as sandbox_access
from shared.sandboxes.access import SandboxAccess
from shared.users import api_keys

KEY_NEEDED = "a key is needed: X-Session-API-Key: <the sandbox's>, or Authorization: Bearer <its owner's>"


class AccessCheck:
    """Looks at a sandbox with the eyes of whoever calls."""

    def __init__(self, context: Context) -> None:
        """Look into this process's store."""
        self._context = context

    async def look(self, proxied: ProxyRequest) -> SandboxAccess:
        """The sandbox as it is now.

        Raises:
            Unauthenticated: no key, or a wrong one; whether there is such a sandbox is not said.
            NotFound: it is deleted; or to a user: there is none, or it is somebody else's.
        """
        if not proxied.has_key:
            raise Unauthenticated(KEY_NEEDED)
        seen, key = await run_in_threadpool(self._look, proxied)
        if key is not None and api_keys.is_use_stale(key):
            await self._context.key_uses.note(key.id)
        return seen

    def _look(self, proxied: ProxyRequest) -> tuple[SandboxAccess, ApiKey | None]:
        vault = self._context.vault
        with self._context.database.reading() as session:
            if proxied.session_key:
                return sandbox_access.see_by_session_key(session, vault, proxied.sandbox_id, proxied.session_key), None
            return sandbox_access.see_by_api_key(session, vault, proxied.sandbox_id, proxied.api_key or "")

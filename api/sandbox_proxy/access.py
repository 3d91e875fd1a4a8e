"""Access checks of proxied requests: one query, before any sandbox is woken."""

from starlette.concurrency import run_in_threadpool

from api.limits.addresses import group
from api.request.context import Context
from api.sandbox_proxy.request import ProxyRequest
from shared.errors import Unauthenticated
from shared.models import ApiKey
from shared.sandboxes import access as sandbox_access
from shared.sandboxes.access import SandboxAccess
from shared.users import api_keys

KEY_REQUIRED = "a key is required: X-Session-API-Key: <the sandbox's>, or Authorization: Bearer <its owner's>"


class AccessCheck:
    """Reads a sandbox with the caller's key."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def check(self, proxied: ProxyRequest) -> SandboxAccess:
        """Return the sandbox in its current state, if the caller's key gives access to it.

        Raises:
            TooManyRequests: the address has sent too many wrong keys.
            Unauthenticated: the key is missing or wrong. The error does not reveal whether the sandbox exists.
            NotFound: the sandbox is deleted; or, for a user's key, it does not exist or has another owner.
        """
        try:
            if not proxied.has_key:
                raise Unauthenticated(KEY_REQUIRED)
            sandbox, key = await run_in_threadpool(self._read, proxied)
        except Unauthenticated:
            self._context.limits.wrong_keys.require(group(proxied.client or ""))
            raise
        if key is not None and api_keys.is_use_stale(key):
            await self._context.key_uses.note(key.id)
        return sandbox

    def _read(self, proxied: ProxyRequest) -> tuple[SandboxAccess, ApiKey | None]:
        vault = self._context.vault
        with self._context.database.reading() as session:
            if proxied.session_key:
                return sandbox_access.find_by_session_key(session, vault, proxied.sandbox_id, proxied.session_key), None
            return sandbox_access.find_by_api_key(session, vault, proxied.sandbox_id, proxied.api_key or "")

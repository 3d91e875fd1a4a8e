"""Access checks of proxied requests: one query, before any sandbox is woken."""

import asyncio
from contextlib import suppress
from typing import NoReturn

from starlette.concurrency import run_in_threadpool

from api.limits.addresses import group
from api.request.context import UNKNOWN, Context
from api.sandbox_proxy.request import ProxyRequest
from shared.agent_server.errors import AgentServerUnreachable
from shared.db.database import StoreError
from shared.errors import NotFound, Unauthenticated
from shared.sandboxes import access as sandbox_access
from shared.sandboxes.access import SandboxAccess
from shared.sandboxes.status import agent_server
from shared.sql.write_slots import caller
from shared.users import api_keys

KEY_REQUIRED = "a key is required: X-Session-API-Key: <the sandbox's>, or Authorization: Bearer <its owner's>"
SESSION_KEY_REQUIRED = "the sandbox's key is required: X-Session-API-Key: <key>"
# Pause between two checks of a user's key.
RECHECK_SECONDS = 60.0


def find_url(proxied: ProxyRequest, sandbox: SandboxAccess) -> str:
    """Return the URL of the requested port, at its node's door.

    Raises:
        NotFound: the sandbox does not expose that port.
        AgentServerUnreachable: it has no agent server.
    """
    if proxied.port is not None:
        urls = (str(url["url"]) for url in sandbox.exposed_urls or () if url["port"] == proxied.port)
        if (found := next(urls, None)) is None:
            raise NotFound("exposed port", str(proxied.port), by="number")
        return found
    if (server := agent_server(sandbox.exposed_urls)) is None:
        raise AgentServerUnreachable(f"sandbox {sandbox.id} has no agent server")
    return server


class AccessCheck:
    """Reads a sandbox with the caller's key."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def check(self, proxied: ProxyRequest) -> SandboxAccess:
        """Return the sandbox in its current state, if the caller's key gives access to it.

        What this task does from then on takes the write slots and threads of the sandbox's owner.

        Raises:
            TooManyRequests: the address has sent too many wrong keys.
            Unauthenticated: the key is missing or wrong. The error does not reveal whether the sandbox exists.
            NotFound: the sandbox is deleted; or, for a user's key, it does not exist or has another owner.
        """
        try:
            sandbox = await self._find(proxied)
        except Unauthenticated:
            self._context.limits.wrong_keys.require(group(proxied.client or ""))
            raise
        caller.set(sandbox.owner_id)
        return sandbox

    async def recheck(self, proxied: ProxyRequest) -> NoReturn:
        """Check a user's key periodically while a websocket or a response is open.

        Raises:
            WorkspaceError: the key gives no access any more.
        """
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            if proxied.may_be_revoked:
                with suppress(StoreError):
                    owner_id = (await self.check(proxied)).owner_id
                    if proxied.key_id is not None:
                        await run_in_threadpool(self._require_in_force, owner_id, proxied.key_id)

    async def _find(self, proxied: ProxyRequest) -> SandboxAccess:
        if not proxied.has_key:
            raise Unauthenticated(KEY_REQUIRED)
        if proxied.sandbox_id is None and not proxied.session_key:
            raise Unauthenticated(SESSION_KEY_REQUIRED)
        if proxied.session_key:
            return await self._find_by_session_key(proxied.sandbox_id, proxied.session_key)
        return await self._find_by_api_key(proxied.sandbox_id or "", proxied.api_key or "")

    def _require_in_force(self, user_id: str, key_id: str) -> None:
        with self._context.database.reading() as session:
            if api_keys.find_in_force(session, user_id, key_id) is None:
                raise Unauthenticated(UNKNOWN)

    async def _find_by_session_key(self, sandbox_id: str | None, key: str) -> SandboxAccess:
        found = await self._context.accessed.find(key)
        if sandbox_id not in (None, found.id):
            raise Unauthenticated("the session key does not belong to this sandbox")
        return sandbox_access.require_alive(found.id, found)

    async def _find_by_api_key(self, sandbox_id: str, key: str) -> SandboxAccess:
        holder, found = await self._context.accessed_by_owner.find((sandbox_id, key))
        if holder.use_is_stale:
            await self._context.key_uses.note(holder.key_id)
        return sandbox_access.require_alive(sandbox_id, found)

"""Who is calling. That is found out before a body is looked at: a stranger learns nothing from what is wrong with it.

A router for users is made with `route_class=ForUsers`, one for agent servers with `route_class=ForAgentServers`.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from api.context import Context, get_context
from shared import failpoints
from shared.errors import Unauthenticated
from shared.models import Sandbox
from shared.store import sandboxes, users

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True)
class Caller:
    """The user whose key came with the request."""

    id: str
    name: str
    # The key's id and prefix, for `/api/keys/current` and the audit; never the key.
    key_id: str
    key_prefix: str


class ForUsers(APIRoute):
    """A route that wants a user's key."""

    def get_route_handler(self) -> Handler:
        """Identify the caller, then handle."""
        return _identified(super().get_route_handler(), _find_caller)


class ForAgentServers(APIRoute):
    """A route that wants a sandbox's session key."""

    def get_route_handler(self) -> Handler:
        """Identify the sandbox, then handle."""
        return _identified(super().get_route_handler(), _find_sandbox)


async def get_caller(request: Request) -> Caller:
    """The user whom `ForUsers` found."""
    caller: Caller = request.state.caller
    return caller


async def get_sandbox(request: Request) -> Sandbox:
    """The sandbox that `ForAgentServers` found."""
    sandbox: Sandbox = request.state.caller
    return sandbox


Me = Annotated[Caller, Depends(get_caller)]
FromSandbox = Annotated[Sandbox, Depends(get_sandbox)]


def _identified(handle: Handler, find: Callable[[Context, Request], Caller | Sandbox]) -> Handler:
    async def identify_and_handle(request: Request) -> Response:
        failpoints.begin(f"{request.method} {request.scope['route'].path}")
        request.state.caller = await run_in_threadpool(find, get_context(request), request)
        return await handle(request)

    return identify_and_handle


def _find_caller(here: Context, request: Request) -> Caller:
    """The caller by `Authorization: Bearer <key>` or, where that is absent, `X-Session-API-Key: <key>`.

    Raises:
        Unauthenticated: no key, or a wrong one.
    """
    key = _bearer(request.headers.get("Authorization")) or request.headers.get("X-Session-API-Key")
    if not key:
        raise Unauthenticated("an API key is needed: Authorization: Bearer <key>, or X-Session-API-Key: <key>")
    with here.database.reading() as session:
        user, row = users.authenticate(session, here.vault, key)
    if users.is_use_stale(row):
        with here.database.transaction() as session:
            users.record_use(session, row.id)
    return Caller(user.id, user.name, row.id, row.prefix)


def _find_sandbox(here: Context, request: Request) -> Sandbox:
    """The sandbox whose session key came with a webhook.

    Raises:
        Unauthenticated: no key, or no sandbox's.
    """
    with here.database.reading() as session:
        sandbox = sandboxes.find_by_session_key(session, here.vault, request.headers.get("X-Session-API-Key") or "")
    if sandbox is None:
        raise Unauthenticated("a webhook carries its sandbox's session key in X-Session-API-Key")
    return sandbox


def _bearer(authorization: str | None) -> str | None:
    scheme, _, key = (authorization or "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None

"""Who is calling. That is found out before any of a body is read: a stranger learns nothing from what is wrong with it.

A router for users is made with `route_class=ForUsers`, one for agent servers with `route_class=ForAgentServers`.
"""

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from starlette.concurrency import run_in_threadpool

from api.errors.openapi import DocumentedRoute
from api.middleware.request_body import CheckedRequest
from api.request.bearer import read_bearer
from api.request.context import Context, get_context
from api.request.session_cookie import check_origin, own_origin, read_token
from shared.errors import Unauthenticated
from shared.models import Sandbox
from shared.observability import failpoints
from shared.sandboxes import queries as sandbox_queries
from shared.sql.write_slots import caller
from shared.users.api_keys import AuthenticatedKey

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True)
class Caller:
    """The user whose key, or whose browser's cookie, came with the request."""

    id: str
    name: str
    # The key's id and prefix, for `/api/keys/current` and the audit; never the key. A cookie's is what it was got with.
    key_id: str
    key_prefix: str
    # Of who came by a cookie: this service's address, as their browser sees it.
    origin: str | None = None


class ForUsers(DocumentedRoute):
    """A route that wants a user's key, or the cookie of their browser."""

    by_cookie = True

    def get_route_handler(self) -> Handler:
        """Identify the caller, check the body, then handle."""
        return _identified(_checked(super().get_route_handler()), _find_caller)


class ForAgentServers(DocumentedRoute):
    """A route that wants a sandbox's session key. A body is read by what the route depends on."""

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


CurrentCaller = Annotated[Caller, Depends(get_caller)]
FromSandbox = Annotated[Sandbox, Depends(get_sandbox)]


def _identified(handle: Handler, find: Callable[[Request], Awaitable[Caller | Sandbox]]) -> Handler:
    async def identify_and_handle(request: Request) -> Response:
        failpoints.begin(f"{request.method} {request.scope['route'].path}")
        request.state.caller = found = await find(request)
        caller.set((isinstance(found, Sandbox) and found.owner_id) or found.id)
        return await handle(request)

    return identify_and_handle


def _checked(handle: Handler) -> Handler:
    async def check_and_handle(request: Request) -> Response:
        checked = CheckedRequest(request.scope, request.receive)
        await checked.check_body()
        return await handle(checked)

    return check_and_handle


async def find_holder(request: Request) -> AuthenticatedKey:
    """Who asks: by `Authorization: Bearer <key>`; where that is absent, `X-Session-API-Key: <key>`; or by a cookie.

    Raises:
        Unauthenticated: no key, or a wrong one, or nobody is signed in.
        Forbidden: a cookie came with what another origin's page sent.
    """
    context = get_context(request)
    if key := _read_key(request):
        holder = await context.callers.find(key)
    elif token := read_token(request):
        check_origin(request)
        holder = await context.signed_in.find(token)
    else:
        raise Unauthenticated("an API key is needed: Authorization: Bearer <key>, or X-Session-API-Key: <key>")
    if holder.use_is_stale:
        await context.key_uses.note(holder.key_id)
    return holder


async def find_signed_in(request: Request) -> AuthenticatedKey | None:
    """Whose browser this is, if anybody is signed in there; no key is looked at."""
    token = read_token(request)
    if token is None:
        return None
    try:
        return await get_context(request).signed_in.find(token)
    except Unauthenticated:
        return None


def to_caller(request: Request, holder: AuthenticatedKey) -> Caller:
    """What routes know of the one who asks."""
    origin = None if _read_key(request) else own_origin(request)
    return Caller(holder.id, holder.name, holder.key_id, holder.key_prefix, origin)


async def _find_caller(request: Request) -> Caller:
    return to_caller(request, await find_holder(request))


def _read_key(request: Request) -> str | None:
    return read_bearer(request.headers.get("Authorization")) or request.headers.get("X-Session-API-Key")


async def _find_sandbox(request: Request) -> Sandbox:
    """The sandbox whose session key came with a webhook.

    Raises:
        Unauthenticated: no key, or no sandbox's.
    """
    key = request.headers.get("X-Session-API-Key") or ""
    sandbox = await run_in_threadpool(_read_sandbox, get_context(request), key)
    if sandbox is None:
        raise Unauthenticated("a webhook carries its sandbox's session key in X-Session-API-Key")
    return sandbox


def _read_sandbox(context: Context, key: str) -> Sandbox | None:
    with context.database.reading() as session:
        return sandbox_queries.find_by_session_key(session, context.vault, key)

"""Authentication of callers, before any byte of a body is read.

A caller without a valid key does not learn what is wrong with a body. Routers for users have `route_class=UserRoute`;
routers for agent servers have `route_class=AgentServerRoute`.
"""

import re
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import iscoroutinefunction
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, Request, Response
from starlette.types import Receive, Scope, Send

from api.errors.openapi import DocumentedRoute
from api.limits.addresses import client_address
from api.middleware.request_body import CheckedRequest, may_be_large
from api.request.context import get_context
from api.request.session_cookie import check_origin, own_origin, read_token
from api.schemas.sandbox_urls import SandboxUrls
from shared.errors import Unauthenticated
from shared.models import Sandbox
from shared.observability import failpoints
from shared.sql.write_slots import caller
from shared.users.api_keys import AuthenticatedKey

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
# In a request's scope: what is held until its response has ended.
HELD = "agent_workspace.held"


@dataclass(frozen=True)
class Caller:
    """The user that the request's API key or session cookie belongs to."""

    id: str
    name: str
    # The id of the key, never the key itself. With a cookie, it is that of the key that the user signed in with.
    key_id: str
    # Signed in by cookie.
    is_browser: bool
    # Differs after each change of the user's lists.
    list_version: str
    _request: Request = field(repr=False, compare=False)

    @property
    def sandbox_urls(self) -> SandboxUrls:
        """The URLs of sandboxes that the caller is shown."""
        settings, origin = get_context(self._request).settings, own_origin(self._request)
        if self.is_browser or not settings.client_port:
            return SandboxUrls(origin)
        return SandboxUrls(origin, settings.client_url.rstrip("/") or _client_url(origin, settings.client_port))


class UserRoute(DocumentedRoute):
    """A route that requires a user's API key or session cookie."""

    accepts_cookie = True

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. Its body counts until the response has ended: a response may need it until then."""
        with ExitStack() as held:
            scope[HELD] = held
            await super().handle(scope, receive, send)

    def get_route_handler(self) -> Handler:
        """Authenticate the caller, check the body, then call the endpoint."""
        handle = super().get_route_handler()
        return _authenticated(_checked(handle if iscoroutinefunction(self.endpoint) else _in_turn(handle)), find_caller)


class AgentServerRoute(DocumentedRoute):
    """A route that requires a sandbox's session key. Its dependencies read the body."""

    def get_route_handler(self) -> Handler:
        """Authenticate the sandbox, count its body against the limits, then call the endpoint."""
        return _authenticated(_counted(super().get_route_handler()), _find_sandbox)


async def get_caller(request: Request) -> Caller:
    """Return the user that `UserRoute` authenticated."""
    caller: Caller = request.state.caller
    return caller


async def get_sandbox(request: Request) -> Sandbox:
    """Return the sandbox that `AgentServerRoute` authenticated."""
    sandbox: Sandbox = request.state.caller
    return sandbox


CurrentCaller = Annotated[Caller, Depends(get_caller)]
CurrentSandbox = Annotated[Sandbox, Depends(get_sandbox)]


@lru_cache(maxsize=1024)
def _client_url(origin: str, port: int) -> str | None:
    """The URL of the client port at the origin's host; None if that would send a sandbox's key without TLS."""
    if origin.startswith("https:"):
        return None
    host = re.sub(r":\d*$", "", urlsplit(origin).netloc.rpartition("@")[2])
    return f"http://{host}:{port}"


def _authenticated(handle: Handler, find: Callable[[Request], Awaitable[Caller | Sandbox]]) -> Handler:
    async def authenticate_and_handle(request: Request) -> Response:
        failpoints.begin(f"{request.method} {request.scope['route'].path}")
        request.state.caller = found = await _find(request, find)
        caller.set((isinstance(found, Sandbox) and found.owner_id) or found.id)
        return await handle(request)

    return authenticate_and_handle


async def _find(request: Request, find: Callable[[Request], Awaitable[Caller | Sandbox]]) -> Caller | Sandbox:
    try:
        return await find(request)
    except Unauthenticated:
        get_context(request).limits.wrong_keys.require(client_address(request.scope))
        raise


def _checked(handle: Handler) -> Handler:
    async def check_and_handle(request: Request) -> Response:
        checked = CheckedRequest(request.scope, request.receive)
        if may_be_large(request.scope):
            counted = get_context(request).limits.user_bodies.hold(request.state.caller.id, request.headers)
            request.scope[HELD].enter_context(counted)
        await checked.check_body()
        return await handle(checked)

    return check_and_handle


def _in_turn(handle: Handler) -> Handler:
    """Call an endpoint that runs in a thread when fewer than `THREADS_OF_USER` of its caller's requests do."""

    async def await_turn_and_handle(request: Request) -> Response:
        async with get_context(request).limits.user_threads.of_caller():
            return await handle(request)

    return await_turn_and_handle


def _counted(handle: Handler) -> Handler:
    async def count_and_handle(request: Request) -> Response:
        sandbox, limits = await get_sandbox(request), get_context(request).limits
        of_owner = limits.owner_webhook_bodies.hold(sandbox.owner_id or "", request.headers)
        with limits.webhook_bodies.hold(sandbox.id, request.headers), of_owner:
            return await handle(request)

    return count_and_handle


async def find_caller(request: Request) -> Caller:
    """Authenticate a request by `Authorization: Bearer <key>`, else `X-Session-API-Key: <key>`, else its cookie.

    For a list, the response cache calls this first, and the route then gets the same caller.

    Raises:
        Unauthenticated: there is no key and no cookie, or it is not valid.
        Forbidden: a page of another origin sent the request with a cookie.
    """
    found: Caller | None = getattr(request.state, "caller", None)
    if found is None:
        user, is_browser = await _authenticate(request)
        found = Caller(user.id, user.name, user.key_id, is_browser, user.list_version, request)
        request.state.caller = found
    return found


async def find_signed_in(request: Request) -> AuthenticatedKey | None:
    """Return the user signed in to the browser, or None. API keys are ignored."""
    token = read_token(request)
    if token is None:
        return None
    try:
        return await get_context(request).signed_in.find(token)
    except Unauthenticated:
        return None


def read_bearer(authorization: str | None) -> str | None:
    """Return the key of `Authorization: Bearer <key>`, or None without one."""
    scheme, _, key = (authorization or "").partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def _read_key(request: Request) -> str | None:
    return read_bearer(request.headers.get("Authorization")) or request.headers.get("X-Session-API-Key")


async def _authenticate(request: Request) -> tuple[AuthenticatedKey, bool]:
    """Return the user, and whether a cookie was used."""
    context, key = get_context(request), _read_key(request)
    if key:
        found = await context.callers.find(key)
    elif token := read_token(request):
        check_origin(request)
        found = await context.signed_in.find(token)
    else:
        raise Unauthenticated("an API key is required: Authorization: Bearer <key>, or X-Session-API-Key: <key>")
    if found.use_is_stale:
        await context.key_uses.note(found.key_id)
    return found, not key


async def _find_sandbox(request: Request) -> Sandbox:
    """Return the sandbox that a webhook's session key belongs to."""
    context = get_context(request)
    sandbox = await context.reporting.find(request.headers.get("X-Session-API-Key") or "")
    context.limits.webhooks.require(sandbox.id)
    return sandbox

"""Requests of Agent Canvas to sandboxes, sent through this service: only to the caller's, as on the sandbox path."""

import re

from fastapi import APIRouter, Request, Response
from starlette.types import Message, Receive, Scope, Send

from api.errors.openapi import error_responses
from api.paths import SANDBOX_PATH_PREFIX
from api.request.authentication import Caller, CurrentCaller, UserRoute
from api.request.context import Context, ContextDep
from api.sandbox_proxy.headers import CONTENT_LENGTH
from api.sandbox_proxy.http import HttpProxy
from api.sandbox_proxy.request import ProxyRequest
from api.schemas.v1.cloud_proxy import CloudProxyRequest
from shared.errors import NotFound, Unauthenticated
from shared.models import Sandbox
from shared.sandboxes import queries as sandbox_queries

router = APIRouter(tags=["web UI"], route_class=UserRoute)

# The origin does not matter: the request is sent to the sandbox only.
SANDBOX_URL = re.compile(rf"https?://[^/?#]+{SANDBOX_PATH_PREFIX}/([0-9a-f]{{32}})/?")
SESSION_KEY = "x-session-api-key"


class Forwarded(Response):
    """The agent server's response, streamed unchanged."""

    def __init__(self, http: HttpProxy, proxied: ProxyRequest, content: bytes) -> None:
        super().__init__()
        self._http, self._proxied, self._content = http, proxied, content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the request and stream the response. The application's handlers respond to errors that precede it."""
        pending = [{"type": "http.request", "body": self._content, "more_body": False}] if self._content else []

        async def replay() -> dict[str, object]:
            return pending.pop() if pending else dict(await receive())

        is_head = self._proxied.method == "HEAD"
        await self._http.serve(self._proxied, replay, _without_length(send) if is_head else send)


@router.post(
    "/cloud-proxy",
    response_class=Response,
    response_description="The agent server's response, unchanged, with its own status",
    responses=error_responses(404, 409, 429, 502, 504),
)
async def ask_sandbox(
    request: Request, context: ContextDep, caller: CurrentCaller, wanted: CloudProxyRequest
) -> Response:
    """Send a request to the agent server of one of the caller's sandboxes, with its session key.

    A paused sandbox is resumed.
    """
    key = wanted.find_header(SESSION_KEY)
    if not key:
        raise Unauthenticated("the sandbox's session key is required, as X-Session-API-Key among `headers`")
    sandbox_id = await context.run_in_turn(_find, context, caller, wanted.host, key)
    proxied = ProxyRequest(
        sandbox_id=sandbox_id,
        method=wanted.method,
        target=wanted.path.encode(),
        headers=[*_own_headers(request), *wanted.passed_headers()],
        scheme=request.scope["scheme"],
        client=request.client.host if request.client else None,
        session_key=key,
        api_key=None,
        key_id=caller.key_id,
    )
    return Forwarded(request.app.state.sandbox_path.http, proxied, wanted.content())


def _without_length(send: Send) -> Send:
    """Leave out the length in a response to HEAD: the caller sent a POST, and would wait for as many bytes."""

    async def send_without_length(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = [(name, value) for name, value in message["headers"] if name != CONTENT_LENGTH]
            message = {**message, "headers": kept}
        await send(message)

    return send_without_length


def _own_headers(request: Request) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in request.headers.raw if name == b"host"]


def _find(context: Context, caller: Caller, host: str, key: str) -> str:
    """Find the id of the caller's sandbox that `host` names."""
    with context.database.reading() as session:
        if match := SANDBOX_URL.fullmatch(host):
            return sandbox_queries.get(session, match[1], caller.id).id
        found = sandbox_queries.find_by_session_key(session, context.vault, key)
        if found is None or found.owner_id != caller.id or not _is_its(host, found, caller):
            raise NotFound("sandbox", host, by="address")
        return found.id


def _is_its(host: str, sandbox: Sandbox, caller: Caller) -> bool:
    return host.rstrip("/") == caller.sandbox_urls.agent_server(sandbox.id)

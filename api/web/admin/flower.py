"""Flower below the operators' pages: the API forwards requests of operators, with Flower's own password.

Flower is another process, on this machine or at `AW_FLOWER_URL`. It never sees the operator's cookie. It only reads,
so a request that changes something needs no token in addition to the check of its origin.
"""

from base64 import b64encode
from collections.abc import AsyncIterator
from functools import cache
from ssl import SSLContext

import httpx
from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response, StreamingResponse
from starlette.background import BackgroundTask

from api.paths import query_of
from api.request.context import ContextDep
from api.request.session_cookie import own_origin
from api.web.admin.access import AdminRoute
from api.web.pages import restrict, show_page
from shared.agent_server.untrusted_http import HTTP_ERRORS
from shared.errors import NotFound
from shared.settings import FLOWER_USER, Settings

router = APIRouter(prefix="/admin/flower", route_class=AdminRoute, include_in_schema=False)

PREFIX = "/admin/flower"
# Written by Flower, or by `make run` (`deploy.service.flower_login`).
LOGIN_FILE = "flower.password"
TIMEOUT = httpx.Timeout(30.0, connect=3.0)
# Headers of a request that are passed on: all that Flower reads except `Origin` and `Sec-Fetch-Site`. Without these,
# Flower checks no origin; `AdminRoute` has done so.
PASSED = ("accept", "accept-language", "content-type", "if-none-match", "if-modified-since", "x-requested-with")
# Headers of a response that are passed on.
RETURNED = ("cache-control", "content-type", "etag", "last-modified", "vary")
# The one script within Flower's pages, by which its page of workers loads its rows again (its workers.html).
INLINE_SCRIPT = "'sha256-A0YIP5A+DKoseGAUTHRoMPDkKPK5cKzfYH3mjcCKtj8='"
ABSENT = (
    "<p>Flower does not respond. It is started by <code>make run</code>, unless <code>FLOWER=0</code> leaves it out; "
    '<code>AW_FLOWER_URL</code> names one elsewhere.</p><p><a href="/admin">Overview</a></p>'
)


@router.get("")
async def go_to_flower() -> Response:
    """Redirect to Flower's first page."""
    return RedirectResponse(f"{PREFIX}/tasks", 303)


@router.api_route("/{path:path}", methods=["GET", "POST"])
async def pass_on(request: Request, context: ContextDep) -> Response:
    """Forward a request to Flower, and its response to the caller.

    Raises:
        NotFound: a segment of the path is `.` or `..`, which the client would resolve to a path outside of Flower's.
    """
    if not {".", ".."}.isdisjoint(request.scope["path"].split("/")):
        raise NotFound("page", request.scope["path"], by="path")
    client = httpx.AsyncClient(timeout=TIMEOUT, trust_env=False, verify=_trust())
    try:
        response = await client.send(await _send(client, request, context.settings), stream=True)
    except (*HTTP_ERRORS, OSError):
        await client.aclose()
        return show_page("Flower", ABSENT, 502)
    headers = {name: response.headers[name] for name in RETURNED if name in response.headers}
    return StreamingResponse(
        _read(response),
        response.status_code,
        headers | _restrictions(own_origin(request)),
        background=BackgroundTask(client.aclose),
    )


async def _send(client: httpx.AsyncClient, request: Request, settings: Settings) -> httpx.Request:
    url = settings.flower_url.rstrip("/") or f"http://127.0.0.1:{settings.flower_port}"
    query = f"?{query_of(request)}" if query_of(request) else ""
    return client.build_request(
        request.method,
        f"{url}{request.scope['raw_path'].decode()}{query}",
        headers={name: request.headers[name] for name in PASSED if name in request.headers} | _login(settings),
        content=await request.body(),
    )


def _login(settings: Settings) -> dict[str, str]:
    """Flower's password on this machine; that of another Flower is in its URL.

    Raises:
        FileNotFoundError: Flower has never run on this machine.
    """
    if settings.flower_url:
        return {}
    login = f"{FLOWER_USER}:{(settings.var_dir / LOGIN_FILE).read_text().strip()}"
    return {"authorization": f"Basic {b64encode(login.encode()).decode()}"}


async def _read(response: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.aiter_bytes():
            yield chunk
    finally:
        await response.aclose()


def _restrictions(origin: str) -> dict[str, str]:
    """What a browser may do with Flower's pages: run Flower's own files, and show itself in no frame."""
    files = f"{origin}{PREFIX}/static/"
    return restrict(
        default_src="'none'",
        script_src=f"{files} {INLINE_SCRIPT}",
        style_src=f"{files} 'unsafe-inline'",
        img_src=f"{files} data:",
        connect_src=f"{origin}{PREFIX}/",
        form_action="'none'",
        frame_ancestors="'none'",
        base_uri="'none'",
    )


@cache
def _trust() -> SSLContext:
    """The certificates that this process trusts; loading them takes some milliseconds."""
    return httpx.create_ssl_context()

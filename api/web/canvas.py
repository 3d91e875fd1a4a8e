"""The web UI, Agent Canvas, as unpacked by `deploy/canvas`: it serves the paths that no route matches.

The web UI sends its cookie to this service, and its policy forbids requests to other hosts. It runs only its own
scripts, since responses of sandboxes come from the same origin (decision 32).
"""

import json
import posixpath
import secrets
from pathlib import Path, PurePosixPath
from urllib.parse import quote, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from api.errors.handlers import error_response
from api.paths import query_of
from api.request.authentication import find_signed_in
from api.request.session_cookie import own_origin
from api.web.pages import restrict

# Paths under these prefixes are never the web UI's.
RESERVED = ("/api/", "/oauth/", "/sandbox/")
# A page needs hundreds of these files. Their names have a digest, but of the content before `deploy/canvas` patched it:
# after an update of this service, a file with the same name may have other content.
SCRIPTS = "assets/"
CACHE, REVALIDATE = "public, max-age=600", "no-cache"


class Canvas:
    """The ASGI application for paths that no route matches."""

    def __init__(self, directory: Path, otherwise: ASGIApp) -> None:
        """Serve `directory`; `otherwise` answers requests that are not for the web UI.

        Raises:
            FileNotFoundError: the directory has no `index.html`.
        """
        self._index = (directory / "index.html").read_text()
        self._files = StaticFiles(directory=directory)
        self._otherwise = otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope["path"])
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD") or _is_reserved(path):
            await self._otherwise(scope, receive, send)
            return
        request, file = Request(scope, receive), _file_name(path)
        if _is_file(file):
            response: ASGIApp = await self._send_file(scope, file)
        else:
            response = await self._respond(request, path) if _comes_from_browser(request) else self._otherwise
        await response(scope, receive, send)

    async def _respond(self, request: Request, path: str) -> Response:
        if await find_signed_in(request) is None:
            # On a loopback address the web UI itself does not ask for a login.
            return_to = path + (f"?{query}" if (query := query_of(request)) else "")
            return RedirectResponse(f"/login?returnTo={quote(return_to, safe='/')}", 303)
        return self._send_page(own_origin(request))

    async def _send_file(self, scope: Scope, file: str) -> Response:
        try:
            response = await self._files.get_response(file, scope)
        except HTTPException:
            return error_response(404, "Not Found")
        response.headers["Cache-Control"] = CACHE if file.startswith(SCRIPTS) else REVALIDATE
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    def _send_page(self, origin: str) -> HTMLResponse:
        nonce = secrets.token_urlsafe(16)
        settings = (
            f"window.__AGENT_CANVAS_LOCK_TO_CLOUD__={json.dumps(origin)};window.__AGENT_CANVAS_DO_NOT_TRACK__=true;"
        )
        page = self._index.replace("</head>", f"<script>{settings}</script></head>", 1)
        return HTMLResponse(page.replace("<script", f'<script nonce="{nonce}"'), headers=_headers(origin, nonce))


def _is_reserved(path: str) -> bool:
    """Whether the path names an API operation, even in another spelling."""
    return f"/{path.lstrip('/').lower()}/".startswith(RESERVED)


def _comes_from_browser(request: Request) -> bool:
    """Whether the client takes HTML: programs send a key, or accept no HTML."""
    accepted = request.headers.get("Accept", "*/*")
    has_key = "Authorization" in request.headers or "X-Session-API-Key" in request.headers
    return not has_key and any(kind in accepted for kind in ("text/html", "text/*", "*/*"))


def _file_name(path: str) -> str:
    """The file that a path names, in the one spelling that has no `..`, `.` or further slashes."""
    return posixpath.normpath(path.lstrip("/"))


def _is_file(file: str) -> bool:
    """Whether a file is sent as it is. The page is not: it needs a login and a policy."""
    return file != "index.html" and bool(PurePosixPath(file).suffix)


def _headers(origin: str, nonce: str) -> dict[str, str]:
    url = urlsplit(origin)
    socket = f"{'wss' if url.scheme == 'https' else 'ws'}://{url.netloc}"
    # Not 'self': responses of sandboxes have the same origin.
    own = f"{origin}/assets/ {origin}/monaco/"
    return restrict(
        default_src="'self'",
        script_src=f"{own} 'nonce-{nonce}'",
        style_src="'self' 'unsafe-inline'",
        img_src="'self' data: blob:",
        font_src="'self' data:",
        connect_src=f"'self' {socket}",
        worker_src=f"{own} blob:",
        frame_ancestors="'none'",
        base_uri="'self'",
        form_action="'self'",
        object_src="'none'",
    )

"""The web page, Agent Canvas, as `deploy/canvas` has unpacked it: what no route takes is a file of it, or the page.

The page calls us with its cookie, and asks other hosts for nothing: its policy says so. It runs no scripts but its own,
since what sandboxes answer is on this address, too (decision 32).
"""

import json
import secrets
from pathlib import Path, PurePosixPath
from urllib.parse import quote, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from api.request.authentication import find_signed_in
from api.request.session_cookie import own_origin

# What begins so is never the page's.
RESERVED = ("/api/", "/oauth/", "/sandbox/")
# Names in it have a digest of their content.
FOREVER = ("/assets/",)
KEEP, ASK_AGAIN = "public, max-age=31536000, immutable", "no-cache"


class Canvas:
    """An ASGI application for what no route takes."""

    def __init__(self, directory: Path, otherwise: ASGIApp) -> None:
        """Serve this directory; `otherwise` answers what is not the page's.

        Raises:
            FileNotFoundError: it is not there.
        """
        self._index = (directory / "index.html").read_text()
        self._files = StaticFiles(directory=directory)
        self._otherwise = otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = str(scope["path"])
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD") or _is_reserved(path):
            await self._otherwise(scope, receive, send)
            return
        request = Request(scope, receive)
        if _is_file(path):
            answer: ASGIApp = await self._send_file(scope, path)
        else:
            answer = await self._answer(request, path) if _comes_from_browser(request) else self._otherwise
        await answer(scope, receive, send)

    async def _answer(self, request: Request, path: str) -> Response:
        if await find_signed_in(request) is None:
            # On a loopback address the page itself does not ask for a login.
            context = path + (f"?{request.url.query}" if request.url.query else "")
            return RedirectResponse(f"/login?returnTo={quote(context, safe='/')}", 303, {"Cache-Control": "no-store"})
        return self._send_page(own_origin(request))

    async def _send_file(self, scope: Scope, path: str) -> Response:
        try:
            response = await self._files.get_response(path.lstrip("/"), scope)
        except HTTPException:
            return JSONResponse({"detail": "Not Found"}, 404)
        response.headers["Cache-Control"] = KEEP if path.startswith(FOREVER) else ASK_AGAIN
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    def _send_page(self, origin: str) -> HTMLResponse:
        nonce = secrets.token_urlsafe(16)
        told = f"window.__AGENT_CANVAS_LOCK_TO_CLOUD__={json.dumps(origin)};window.__AGENT_CANVAS_DO_NOT_TRACK__=true;"
        page = self._index.replace("</head>", f"<script>{told}</script></head>", 1)
        return HTMLResponse(page.replace("<script", f'<script nonce="{nonce}"'), headers=_headers(origin, nonce))


def _is_reserved(path: str) -> bool:
    """Whether a program means one of our operations, even if it writes its path in another way."""
    return f"/{path.lstrip('/').lower()}/".startswith(RESERVED)


def _comes_from_browser(request: Request) -> bool:
    """Whether a page would be understood: programs show a key, or say that they want no HTML."""
    accepted = request.headers.get("Accept", "*/*")
    has_key = "Authorization" in request.headers or "X-Session-API-Key" in request.headers
    return not has_key and any(kind in accepted for kind in ("text/html", "text/*", "*/*"))


def _is_file(path: str) -> bool:
    return path != "/index.html" and bool(PurePosixPath(path).suffix)


def _headers(origin: str, nonce: str) -> dict[str, str]:
    url = urlsplit(origin)
    socket = f"{'wss' if url.scheme == 'https' else 'ws'}://{url.netloc}"
    # Not 'self': what a sandbox answers is that, too.
    own = f"{origin}/assets/ {origin}/monaco/"
    policy = {
        "default-src": "'self'",
        "script-src": f"{own} 'nonce-{nonce}'",
        "style-src": "'self' 'unsafe-inline'",
        "img-src": "'self' data: blob:",
        "font-src": "'self' data:",
        "connect-src": f"'self' {socket}",
        "worker-src": f"{own} blob:",
        "frame-ancestors": "'none'",
        "base-uri": "'self'",
        "form-action": "'self'",
        "object-src": "'none'",
    }
    return {
        "Content-Security-Policy": "; ".join(f"{name} {sources}" for name, sources in policy.items()),
        "Cache-Control": "no-store",
        "Referrer-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
    }

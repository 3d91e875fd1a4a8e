"""Browsers that are signed in: their cookie, our address as they see it, and whose page a request comes from.

A cookie is sent whoever made the page: so what changes anything must come from a page of this service's own origin
(decision 32).
"""

import re
from urllib.parse import urlsplit

from fastapi import Request, Response
from starlette.requests import HTTPConnection

from api.request.context import get_context
from api.server.sockets import gateway_address
from shared.errors import Forbidden

COOKIE = "aw_session"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
# A host, and a port: whatever else is in a request's `Host` is nobody's address.
HOST = re.compile(r"[A-Za-z0-9.-]+(?::\d{1,5})?|\[[0-9A-Fa-f:.]+\](?::\d{1,5})?")
# A path of ours: what a browser might take for another host's address, it may not begin with or hold.
LOCAL_PATH = re.compile(r"/(?!/)[^\\\x00-\x20\x7f]*")
MAX_PATH_LENGTH = 4096


def read_token(request: HTTPConnection) -> str | None:
    """The token of the browser's login, if it has one, and did not send it to the address of sandboxes."""
    token = request.cookies.get(COOKIE) or None
    return None if token and is_for_sandboxes(request) else token


def is_for_sandboxes(request: HTTPConnection) -> bool:
    """Whether a request came to the address that only sandboxes are told of: a cookie there may be stolen."""
    settings, server = get_context(request).settings, request.scope.get("server")
    return server is not None and server[0] == gateway_address(settings) != settings.host


def own_origin(request: HTTPConnection) -> str:
    """This service as the browser sees it: `AW_WEB_URL` if that is set, or as it was asked for."""
    settings = get_context(request).settings
    host = request.headers.get("Host", "")
    if settings.web_url or not HOST.fullmatch(host):
        url = urlsplit(settings.public_url)
        return f"{url.scheme}://{url.netloc}"
    scheme = "https" if request.scope["scheme"] in ("https", "wss") else "http"
    return f"{scheme}://{host}"


def comes_from_us(request: HTTPConnection) -> bool:
    """Whether a page of ours sent this, or a listed one, as the browser says; one that says nothing is not believed."""
    site = request.headers.get("Sec-Fetch-Site")
    origin, host = request.headers.get("Origin"), request.headers.get("Host")
    if origin in get_context(request).settings.cors_origin_list:
        return True
    if site is not None:
        return site == "same-origin"
    # Behind a proxy that ends TLS without saying so, the scheme is another one.
    return origin is not None and (origin == own_origin(request) or origin.partition("://")[2] == host)


def check_origin(request: Request) -> None:
    """Let a cookie change nothing for pages that are not ours.

    Raises:
        Forbidden: it would.
    """
    if request.method not in SAFE_METHODS and not comes_from_us(request):
        raise Forbidden("a login by cookie may be used by this service's own pages only: Origin names another, or none")


def set_cookie(request: Request, response: Response, token: str, seconds: int) -> None:
    """Have the browser keep a login."""
    secure = own_origin(request).startswith("https:") or request.headers.get("Origin", "").startswith("https:")
    response.set_cookie(COOKIE, token, max_age=seconds, path="/", httponly=True, samesite="lax", secure=secure)


def clear_cookie(response: Response) -> None:
    """Have the browser forget its login."""
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="lax")


def local_path(text: str | None) -> str:
    """Where to go on, if that is a path of ours; else the first page."""
    return text if text and len(text) <= MAX_PATH_LENGTH and LOCAL_PATH.fullmatch(text) else "/"

"""Session cookies of browsers, and the check of a request's origin.

A browser sends the cookie with requests of any page. So a request that changes anything must come from a page of this
service's own origin (decision 32).
"""

import re
from ipaddress import IPv6Address
from urllib.parse import urlsplit

from fastapi import Request, Response
from starlette.requests import HTTPConnection

from api.request.context import get_context
from shared.errors import Forbidden

COOKIE = "aw_session"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
# A host with an optional port; any other `Host` header is no address. No host is longer (RFC 1035, 2.3.4). The length
# matters because caches of lists keep the host with each response.
HOST = re.compile(r"[A-Za-z0-9.-]{1,253}(?::\d{1,5})?|\[[0-9A-Fa-f:.]{1,45}\](?::\d{1,5})?")
# A path of this service. It must not begin with, or contain, what a browser may read as another host's address.
LOCAL_PATH = re.compile(r"/(?!/)[^\\\x00-\x20\x7f]*")
MAX_PATH_LENGTH = 4096


def read_token(request: HTTPConnection) -> str | None:
    return request.cookies.get(COOKIE) or None


def own_origin(request: HTTPConnection) -> str:
    """Return the service's origin as the browser sees it: from `AW_WEB_URL` if set, else from `Host`."""
    settings = get_context(request).settings
    host = request.headers.get("Host", "")
    if settings.web_url or not _is_host(host):
        url = urlsplit(settings.public_url)
        return f"{url.scheme}://{url.netloc}"
    scheme = "https" if request.scope["scheme"] in ("https", "wss") else "http"
    return f"{scheme}://{host}"


def is_trusted_origin(request: HTTPConnection) -> bool:
    """Whether a page of this service, or of a listed origin, sent the request.

    A request whose headers name no origin is not trusted.
    """
    site = request.headers.get("Sec-Fetch-Site")
    origin, host = request.headers.get("Origin"), request.headers.get("Host")
    if origin in get_context(request).settings.cors_origin_list:
        return True
    if site is not None:
        return site == "same-origin"
    # Behind a proxy that terminates TLS and sends no header about it, the schemes differ.
    return origin is not None and (origin == own_origin(request) or origin.partition("://")[2] == host)


def check_origin(request: Request) -> None:
    """Reject a request with a cookie if it changes anything and no trusted page sent it.

    Raises:
        Forbidden: the request is rejected.
    """
    if request.method not in SAFE_METHODS and not is_trusted_origin(request):
        raise Forbidden("only this service's own pages may use a session cookie: Origin names another page, or none")


def set_cookie(request: Request, response: Response, token: str, seconds: int) -> None:
    """Store a session token in the browser, for `seconds`."""
    secure = own_origin(request).startswith("https:") or request.headers.get("Origin", "").startswith("https:")
    response.set_cookie(COOKIE, token, max_age=seconds, path="/", httponly=True, samesite="lax", secure=secure)


def clear_cookie(response: Response) -> None:
    """Remove the session token from the browser."""
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="lax")


def local_path(text: str | None) -> str:
    """Return the path if it is one of this service, else `/`."""
    return text if text and len(text) <= MAX_PATH_LENGTH and LOCAL_PATH.fullmatch(text) else "/"


def _is_host(text: str) -> bool:
    if not HOST.fullmatch(text):
        return False
    if text.startswith("["):
        try:  # newer versions of Python parse no URL with an invalid address
            IPv6Address(text[1:].partition("]")[0])
        except ValueError:
            return False
    return True

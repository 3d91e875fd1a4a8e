"""httpx for servers that this service does not trust: agent servers, and the hosts that users name.

httpx builds the request that a redirect leads to, even if its caller follows none. A hostile `Location` makes that fail
with errors that are no `httpx.HTTPError`. These clients therefore drop the header before httpx reads it.
"""

from collections.abc import Awaitable, Callable
from http.cookiejar import CookieJar, DefaultCookiePolicy
from ssl import SSLError
from typing import Any

import httpx

# All exceptions that httpx raises because of a server. An invalid host name (IDNA) raises a UnicodeError. A record that
# TLS can't decrypt raises an SSLError, which an asynchronous client does not translate.
HTTP_ERRORS = (httpx.HTTPError, httpx.InvalidURL, UnicodeError, SSLError)


def drop_location(response: httpx.Response) -> None:
    """Remove the address of a redirect from a response."""
    response.headers.pop("Location", None)


async def drop_location_async(response: httpx.Response) -> None:
    """Remove the address of a redirect from a response of an asynchronous client."""
    drop_location(response)


def client_options(drop: Callable[[httpx.Response], Awaitable[None] | None] = drop_location) -> dict[str, Any]:
    """Return options of an httpx client for any number of servers that are not trusted.

    The environment's proxies are ignored: sandboxes are on the private network, and a proxy would resolve names by
    itself. Cookies are refused: ports of one host share them, so one server's cookies would be sent to all others.

    Args:
        drop: `drop_location`, or `drop_location_async` for an asynchronous client.
    """
    return {
        "trust_env": False,
        "headers": {"Accept-Encoding": "identity"},
        "cookies": CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        "event_hooks": {"response": [drop]},
    }

"""Headers of proxied requests and responses, without hop-by-hop headers and without keys."""

import re
from urllib.parse import urljoin

from api.sandbox_proxy.request import Headers, ProxyRequest
from shared.agent_server.door import TOKEN_HEADER

# RFC 9110, section 7.6.1, and those of older proxies.
HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
# Not passed to the agent server: keys, cookies, which all sandboxes would share, and what this service sets itself.
DROPPED_FROM_REQUESTS = HOP_BY_HOP | {
    b"authorization",
    b"cookie",
    b"expect",
    b"forwarded",
    b"host",
    b"x-session-api-key",
    TOKEN_HEADER.lower().encode(),
}
FORWARDED = b"x-forwarded-"
# Which pages may read a response is this service's decision.
CORS = b"access-control-"
# In `CDN-Cache-Control` and others (RFC 9213), an order to shared caches, for which they ignore `no-store`.
CACHE_CONTROL = b"cache-control"
# Not passed to the client: this server sets its own date and forbids caches, and a sandbox's cookies would go to all
# others. No sandbox decides for this origin what a browser clears, enforces, reports, fetches, or asks its user for.
DROPPED_FROM_RESPONSES = HOP_BY_HOP | {
    b"accept-ch",
    b"alt-svc",
    b"attribution-reporting-register-source",
    b"attribution-reporting-register-trigger",
    b"clear-site-data",
    b"content-security-policy",
    b"content-security-policy-report-only",
    b"critical-ch",
    b"date",
    b"edge-control",
    b"expires",
    b"link",
    b"nel",
    b"origin-trial",
    b"pragma",
    b"public-key-pins",
    b"refresh",
    b"report-to",
    b"reporting-endpoints",
    b"sec-session-registration",
    b"secure-session-registration",
    b"server",
    b"service-worker-allowed",
    b"set-cookie",
    b"set-cookie2",
    b"set-login",
    b"sourcemap",
    b"speculation-rules",
    b"strict-transport-security",
    b"surrogate-control",
    b"use-as-dictionary",
    b"www-authenticate",
    b"x-content-type-options",
    b"x-sourcemap",
    # Orders to a reverse proxy: nginx and others would send the client's request, with its key, to another path.
    b"x-accel-charset",
    b"x-accel-expires",
    b"x-accel-limit-rate",
    b"x-accel-redirect",
    b"x-lighttpd-send-file",
    b"x-reproxy-url",
    b"x-sendfile",
}
# A sandbox's response is not a page of this service: on this origin, it must not run scripts with the caller's rights.
ADDED_TO_RESPONSES = [(b"content-security-policy", b"sandbox"), (b"x-content-type-options", b"nosniff")]

# uvicorn refuses to send a header that has one of these characters. HAProxy and h11 accept them.
CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")

# Statuses of responses that have no content. A length that they name is that of another response, and this server would
# wait for as many bytes (RFC 9110, section 8.6).
WITHOUT_CONTENT = (204, 304)
CONTENT_LENGTH = b"content-length"

# A reference without a scheme and a host (RFC 3986, section 4.2), and without characters that browsers treat as a slash
# or ignore.
RELATIVE = re.compile(rb"(?!//)(?![^/?#]*:)[!-\[\]-~]+")


def for_server(proxied: ProxyRequest, host: bytes, session_key: str | None) -> Headers:
    """Return the headers of a request to the server at `host`; only agent servers get their key."""
    passed = _without(proxied.headers, DROPPED_FROM_REQUESTS)
    passed = [(name, value) for name, value in passed if not name.startswith(FORWARDED)]
    key = [(b"x-session-api-key", session_key.encode())] if session_key else []
    return [(b"host", host), *key, *forwarded(proxied), *passed]


def forwarded(proxied: ProxyRequest) -> Headers:
    """Return the `X-Forwarded-*` headers. Those of the client are not trusted."""
    known = [
        (b"x-forwarded-for", (proxied.client or "unknown").encode()),
        (b"x-forwarded-proto", proxied.scheme.encode()),
    ]
    known += [(b"x-forwarded-prefix", proxied.path.encode())] if proxied.path else []
    host = proxied.header(b"host")
    return [*known, (b"x-forwarded-host", host)] if host else known


def for_client(proxied: ProxyRequest, status: int, headers: Headers, origin: bytes) -> Headers:
    """Return the headers of a response to the client; `origin` is the agent server's, which clients may not reach."""
    lower = [(name.lower(), value) for name, value in headers]
    dropped = DROPPED_FROM_RESPONSES | {CONTENT_LENGTH} if status in WITHOUT_CONTENT else DROPPED_FROM_RESPONSES
    passed = []
    for name, value in _without(lower, dropped):
        if name.startswith(CORS) or name.endswith(CACHE_CONTROL) or CONTROL.search(value):
            continue
        shown = relocate(proxied, value, origin) if name == b"location" else value
        if shown is not None:
            passed.append((name, shown))
    return passed + ADDED_TO_RESPONSES


def relocate(proxied: ProxyRequest, location: bytes, origin: bytes) -> bytes | None:
    """Map a response's `Location` to the sandbox's path; None if it leads elsewhere.

    The web UI follows a redirect with its cookie. A redirect must lead only to this sandbox: otherwise, the agent
    server could make the web UI send any request.
    """
    path = location.removeprefix(origin) if location.startswith(origin + b"/") else location
    if not RELATIVE.fullmatch(path):
        return None
    # Browsers treat this encoding as a dot (the URL standard).
    plain = re.sub("%2e", ".", path.decode(), flags=re.IGNORECASE)
    try:
        joined = urljoin(proxied.target.decode("latin-1"), plain)
    except ValueError:
        # The client's target is no URL: it begins with two slashes, and what follows them is no host.
        return None
    joined = joined if joined.startswith("/") else f"/{joined}"
    if {".", ".."} & set(re.split("[?#]", joined)[0].split("/")) or not RELATIVE.fullmatch(joined.encode()):
        return None
    return f"{proxied.path}{joined}".encode()


def _without(headers: Headers, names: frozenset[bytes]) -> Headers:
    listed = b",".join(value for name, value in headers if name == b"connection")
    also = {name.strip().lower() for name in listed.split(b",")} if listed else frozenset()
    return [(name, value) for name, value in headers if name not in names and name not in also]

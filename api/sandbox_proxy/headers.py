"""Headers on their way through: what is one connection's own stays behind, and so do keys."""

import re
from urllib.parse import urljoin

from api.sandbox_proxy.request import Headers, ProxyRequest

# RFC 9110, section 7.6.1, and those that older proxies know.
OF_ONE_CONNECTION = frozenset(
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
# What the agent server does not get: keys, cookies, which all sandboxes would share, and what we say ourselves.
KEPT_FROM_SERVER = OF_ONE_CONNECTION | {
    b"authorization",
    b"cookie",
    b"expect",
    b"forwarded",
    b"host",
    b"x-session-api-key",
}
OURS = b"x-forwarded-"
# What the client does not get: this server says its own date, and one sandbox's cookies would go to all others. No
# sandbox speaks for this address: what a browser is to forget, to keep to, to report, to fetch or to ask its user for.
KEPT_FROM_CLIENT = OF_ONE_CONNECTION | {
    b"accept-ch",
    b"alt-svc",
    b"attribution-reporting-register-source",
    b"attribution-reporting-register-trigger",
    b"clear-site-data",
    b"content-security-policy",
    b"content-security-policy-report-only",
    b"critical-ch",
    b"date",
    b"link",
    b"nel",
    b"origin-trial",
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
    b"use-as-dictionary",
    b"www-authenticate",
    b"x-content-type-options",
    b"x-sourcemap",
}
# What a sandbox sends is nobody's page: on this address it must run no script with the caller's rights.
HARMLESS = [(b"content-security-policy", b"sandbox"), (b"x-content-type-options", b"nosniff")]

# A reference without a scheme and a host (RFC 3986, section 4.2), and without what browsers take for a slash or leave
# out.
RELATIVE = re.compile(rb"(?!//)(?![^/?#]*:)[!-\[\]-~]+")


def for_server(proxied: ProxyRequest, host: bytes, session_key: str) -> Headers:
    """A request's headers as the agent server at that host gets them."""
    kept = _without(proxied.headers, KEPT_FROM_SERVER)
    passed = [(name, value) for name, value in kept if not name.startswith(OURS)]
    return [(b"host", host), (b"x-session-api-key", session_key.encode()), *forwarded(proxied), *passed]


def forwarded(proxied: ProxyRequest) -> Headers:
    """Where the request comes from. What the client says of it itself is not believed."""
    said = [
        (b"x-forwarded-for", (proxied.client or "unknown").encode()),
        (b"x-forwarded-proto", proxied.scheme.encode()),
        (b"x-forwarded-prefix", proxied.path.encode()),
    ]
    host = proxied.header(b"host")
    return [*said, (b"x-forwarded-host", host)] if host else said


def for_client(proxied: ProxyRequest, headers: Headers, origin: bytes) -> Headers:
    """An answer's headers as the client gets them; `origin` is the agent server's, which clients may not reach."""
    lower = [(name.lower(), value) for name, value in headers]
    passed = []
    for name, value in _without(lower, KEPT_FROM_CLIENT):
        shown = relocate(proxied, value, origin) if name == b"location" else value
        if shown is not None:
            passed.append((name, shown))
    return passed + HARMLESS


def relocate(proxied: ProxyRequest, location: bytes, origin: bytes) -> bytes | None:
    """Where on the sandbox's path an answer's `Location` leads; None if it leads away from it.

    A page of ours that follows it, with its cookie, must not ask anything but this sandbox: the agent server would have
    chosen what.
    """
    path = location.removeprefix(origin) if location.startswith(origin + b"/") else location
    if not RELATIVE.fullmatch(path):
        return None
    # A dot may be written so, and browsers take the two for one (the URL standard).
    plain = re.sub("%2e", ".", path.decode(), flags=re.IGNORECASE)
    joined = urljoin(proxied.target.decode("latin-1"), plain)
    joined = joined if joined.startswith("/") else f"/{joined}"
    if {".", ".."} & set(re.split("[?#]", joined)[0].split("/")) or not RELATIVE.fullmatch(joined.encode()):
        return None
    return f"{proxied.path}{joined}".encode()


def _without(headers: Headers, names: frozenset[bytes]) -> Headers:
    listed = b",".join(value for name, value in headers if name == b"connection")
    also = {name.strip().lower() for name in listed.split(b",")} if listed else frozenset()
    return [(name, value) for name, value in headers if name not in names and name not in also]

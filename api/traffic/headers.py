"""Headers on their way through: what is one connection's own stays behind, and so do keys."""

from api.traffic.visit import Headers, Visit

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
# What the client does not get: this server says its own date, and one sandbox's cookies would go to all others.
KEPT_FROM_CLIENT = OF_ONE_CONNECTION | {b"date", b"server", b"set-cookie", b"content-security-policy"}
# What a sandbox sends is nobody's page: on this address it must run no script with the caller's rights.
HARMLESS = [(b"content-security-policy", b"sandbox"), (b"x-content-type-options", b"nosniff")]


def for_server(visit: Visit, host: bytes, session_key: str) -> Headers:
    """A request's headers as the agent server at that host gets them."""
    kept = _without(visit.headers, KEPT_FROM_SERVER)
    passed = [(name, value) for name, value in kept if not name.startswith(OURS)]
    return [(b"host", host), (b"x-session-api-key", session_key.encode()), *forwarded(visit), *passed]


def forwarded(visit: Visit) -> Headers:
    """Where the request comes from. What the client says of it itself is not believed."""
    said = [
        (b"x-forwarded-for", (visit.client or "unknown").encode()),
        (b"x-forwarded-proto", visit.scheme.encode()),
        (b"x-forwarded-prefix", visit.path.encode()),
    ]
    host = visit.header(b"host")
    return [*said, (b"x-forwarded-host", host)] if host else said


def for_client(visit: Visit, headers: Headers, origin: bytes) -> Headers:
    """An answer's headers as the client gets them; `origin` is the agent server's, which clients may not reach."""
    lower = [(name.lower(), value) for name, value in headers]
    kept = _without(lower, KEPT_FROM_CLIENT)
    return [
        (name, _relocate(visit, value, origin) if name == b"location" else value) for name, value in kept
    ] + HARMLESS


def _without(headers: Headers, names: frozenset[bytes]) -> Headers:
    listed = b",".join(value for name, value in headers if name == b"connection")
    also = {name.strip().lower() for name in listed.split(b",")} if listed else frozenset()
    return [(name, value) for name, value in headers if name not in names and name not in also]


def _relocate(visit: Visit, location: bytes, origin: bytes) -> bytes:
    path = location.removeprefix(origin)
    is_its_own = path.startswith(b"/") and not path.startswith(b"//")
    return visit.path.encode() + path if is_its_own else location

"""Malformed, ambiguous and endless requests from inside to the service's listener for sandboxes."""

from functools import partial
from typing import Any

from tests.isolation.attack import Attack, Attempt, at

attack = partial(Attack, "requests")

INSIDE, HOST = "A", "host"
OWN_HEADER = "X-Session-API-Key: $A_key\r\n"
SECRETS = "/api/v1/sandboxes/$A_id/settings/secrets"
EVENTS, OWN = (
    "$service/api/v1/webhooks/events/$A_conversation",
    {"X-Session-API-Key": "$A_key", "Content-Type": "application/json"},
)
OK = "^HTTP/1.1 200 "
TWO = "HTTP/1.1 200 .*HTTP/1.1 200 "


def raw(text: str, pattern: str, place: str = INSIDE, **more: Any) -> Attempt:
    host, port = ("$service_host", "$service_port") if place == INSIDE else ("127.0.0.1", "$api_port")
    return at(place, "http.raw", host=host, port=port, text=text, pattern=pattern, **more)


def head(path: str, *lines: str, method: str = "GET", host: str = "x", close: bool = True) -> str:
    ending = ["Connection: close\r\n"] if close else []
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{''.join([*lines, *ending])}\r\n"


HONEST = raw(head(SECRETS, OWN_HEADER), OK)
LOGIN = raw(head("/login"), OK, HOST)


def _smuggled(name: str, *lines: str, body: str = "") -> Attack:
    """A second request, for a path that is not served, in the body of the first; the control is two requests."""
    second = head("/login")
    first = head(SECRETS, OWN_HEADER, *lines, close=False)
    control = raw(head("/alive", close=False) + head("/login"), TWO, HOST)
    return attack(name, raw(first + body + second, TWO), control)


SMUGGLING = [
    _smuggled("smuggles a request past two lengths", "Content-Length: 0\r\n", "Content-Length: 5\r\n", body=""),
    _smuggled(
        "smuggles a request past a length and chunks",
        "Content-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\n",
        body="0\r\n\r\n",
    ),
    _smuggled(
        "smuggles a request past an unknown transfer coding", "Transfer-Encoding: xchunked\r\n", "Content-Length: 0\r\n"
    ),
    _smuggled(
        "smuggles a request past a folded transfer coding", "Transfer-Encoding:\r\n chunked\r\n", body="0\r\n\r\n"
    ),
    _smuggled("smuggles a request past a space before the colon", "Transfer-Encoding : chunked\r\n", body="0\r\n\r\n"),
    _smuggled("smuggles a request past a signed length", "Content-Length: +0\r\n"),
    _smuggled(
        "smuggles a request past a bare line feed in a header", "X: y\nTransfer-Encoding: chunked\r\n", body="0\r\n\r\n"
    ),
    _smuggled("smuggles a request in a pipeline"),
]


def _routed(name: str, path: str, *lines: str, method: str = "GET", host: str = "x", pattern: str = OK) -> Attack:
    return attack(name, raw(head(path, *lines, method=method, host=host), pattern), LOGIN)


ROUTES = [
    _routed("asks for a page by an absolute address", "http://$service_host:$service_port/login"),
    _routed("asks for a page of another host by an absolute address", "http://127.0.0.1:$api_port/login"),
    _routed("asks for a page by two slashes", "//login"),
    _routed("asks for a page by dots behind an allowed path", "/api/v1/webhooks/../../../login"),
    _routed("asks for a page by encoded dots behind an allowed path", "/api/v1/webhooks/%2e%2e/%2e%2e/%2e%2e/login"),
    _routed("asks for a page by an encoded slash behind an allowed path", "/api/v1/webhooks/..%2f..%2f..%2flogin"),
    _routed("asks for a page by a backslash behind an allowed path", "/api/v1/webhooks/..\\..\\..\\login"),
    _routed("asks for a page by a parameter in the path", "/api/v1/webhooks/..;/..;/..;/login"),
    _routed("asks for a page in other case", "/LOGIN"),
    _routed("asks for a page with a null character", "/login%00/api/v1/webhooks"),
    _routed(
        "asks for a page with another method in a header",
        "/api/v1/webhooks/events",
        "X-HTTP-Method-Override: GET\r\n",
        "X-Original-URL: /login\r\n",
        "X-Rewrite-URL: /login\r\n",
    ),
    _routed(
        "asks for a page in the name of a proxy",
        "/login",
        "X-Forwarded-For: 127.0.0.1\r\n",
        "X-Forwarded-Host: 127.0.0.1\r\n",
        "Forwarded: for=127.0.0.1\r\n",
    ),
    _routed("asks for a page under the host's own name", "/login", host="127.0.0.1:$api_port"),
    _routed("asks for the agent server of a neighbour through the door", "/$B_ip/health"),
    _routed("asks for the agent server of a neighbour with port and encoded dots", "/$B_ip:8000%2f../health"),
    _routed("asks for the agent server of a neighbour as a sandbox path", "/sandbox/$B_id/health", OWN_HEADER),
    attack(
        "opens a tunnel to a neighbour by CONNECT",
        raw(head("$B_ip:8000", method="CONNECT", host="$B_ip:8000"), "HTTP/1.[01] 200"),
        LOGIN,
    ),
    attack("gets its own request back by TRACE", raw(head("/", OWN_HEADER, method="TRACE"), "HTTP/1.1 200"), LOGIN),
    attack(
        "upgrades to a websocket at webhooks",
        raw(
            head(
                "/api/v1/webhooks/conversations",
                OWN_HEADER,
                "Upgrade: websocket\r\n",
                "Sec-WebSocket-Version: 13\r\n",
                "Sec-WebSocket-Key: MTIzNDU2Nzg5MDEyMzQ1Ng==\r\n",
                "Connection: upgrade\r\n",
                close=False,
            ),
            "HTTP/1.1 101",
        ),
        raw(
            head(
                "/sandbox/$A_id/sockets/bash-events",
                OWN_HEADER,
                "Upgrade: websocket\r\n",
                "Sec-WebSocket-Version: 13\r\n",
                "Sec-WebSocket-Key: MTIzNDU2Nzg5MDEyMzQ1Ng==\r\n",
                "Connection: upgrade\r\n",
                close=False,
            ),
            "HTTP/1.1 101",
            HOST,
        ),
    ),
    attack(
        "upgrades to HTTP/2 in clear",
        raw(
            head(
                "/api/v1/webhooks/conversations",
                "Upgrade: h2c\r\n",
                "HTTP2-Settings: AAMAAABkAAQAAP__\r\n",
                "Connection: Upgrade, HTTP2-Settings\r\n",
                close=False,
            ),
            "HTTP/1.1 101",
        ),
        LOGIN,
    ),
    attack(
        "speaks HTTP/2 with prior knowledge",
        raw("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", "^\x00\x00[^H]"),
        LOGIN,
    ),
]


def _large(name: str, text: str, pattern: str = "^HTTP/1.1 (200|404|422)") -> Attack:
    return attack(name, raw(text, pattern), HONEST)


def _post(path: str, body: str, *lines: str) -> str:
    return (
        head(
            path,
            OWN_HEADER,
            "Content-Type: application/json\r\n",
            f"Content-Length: {len(body)}\r\n",
            *lines,
            method="POST",
        )
        + body
    )


SIZES = [
    _large("sends a header of 1 MB", head(SECRETS, OWN_HEADER, f"X: {'x' * 1_000_000}\r\n"), OK),
    _large("sends 100,000 headers", head(SECRETS, OWN_HEADER, "X: y\r\n" * 100_000), OK),
    _large("sends an address of 1 MB", head(f"{SECRETS}?{'x' * 1_000_000}", OWN_HEADER), OK),
    attack(
        "sends a report of 40 MB",
        at(INSIDE, "http.large_body", url=EVENTS, headers=OWN, megabytes=40),
        at(INSIDE, "http.large_body", url=EVENTS, headers=OWN, megabytes=0),
    ),
    attack(
        "sends JSON of 100,000 nested lists",
        at(INSIDE, "http.deep_json", url=EVENTS, headers=OWN, depth=100_000),
        at(INSIDE, "http.deep_json", url=EVENTS, headers=OWN, depth=0),
    ),
    attack(
        "sends a number of 100,000 digits",
        raw(_post("/api/v1/webhooks/events/$A_conversation", f'[{{"id": {"9" * 100_000}}}]'), "^HTTP/1.1 (200|5)"),
        HONEST,
    ),
    attack(
        "stores text that is not valid Unicode",
        raw(
            _post(
                "/api/v1/webhooks/events/$A_conversation",
                '[{"id": "\\ud800", "kind": "a\\u0000", "timestamp": "2026-01-01T00:00:00", "source": "agent"}]',
            ),
            "^HTTP/1.1 5",
        ),
        at(HOST, "http.request", url="$api/alive"),
    ),
]
# A separate sandbox, because the floods use up its limits.
FLOODER, FLOODED = "A2", {"X-Session-API-Key": "$A2_key"}
# Another sandbox, so that the attacks from the first one need not wait for those on timeouts.
HOLDER = "B"
REPORT = (
    "POST /api/v1/webhooks/conversations HTTP/1.1\r\nHost: x\r\nX-Session-API-Key: $B_key\r\nContent-Length: 9\r\n\r\n"
)


def _held(name: str, beginning: str, seconds: int) -> Attack:
    """An attack on a timeout; the control is a listener without timeouts."""
    control = at(HOST, "holding.slow_body", host="127.0.0.1", port="$silent_port", head=beginning, seconds=seconds)
    return attack(
        name,
        at(HOLDER, "holding.slow_body", host="$service_host", port="$service_port", head=beginning, seconds=seconds),
        control,
    )


FLOODS = [
    attack(
        "reports conversations without a limit",
        at(
            FLOODER,
            "http.flood_conversations",
            url="$service/api/v1/webhooks/conversations",
            headers=FLOODED,
            report="$report_of_new",
            count=150,
        ),
        at(
            FLOODER,
            "http.flood_conversations",
            url="$service/api/v1/webhooks/conversations",
            headers=FLOODED,
            report="$report_of_new",
            count=3,
        ),
    ),
    attack(
        "stores events without a limit",
        at(
            "B",
            "http.flood_events",
            url="$service/api/v1/webhooks/events/$B_conversation",
            headers={"X-Session-API-Key": "$B_key"},
            count=30,
            size=1_000_000,
        ),
        at(
            "B",
            "http.flood_events",
            url="$service/api/v1/webhooks/events/$B_conversation",
            headers={"X-Session-API-Key": "$B_key"},
            count=1,
            size=1000,
        ),
    ),
    attack(
        "guesses keys without a limit",
        at(FLOODER, "http.guess", url=f"$service{SECRETS}", count=150),
        at(HOST, "http.guess", url=f"$api{SECRETS}", count=3),
    ),
    _held("holds a connection without a request", "GET /", 40),  # the door waits for 20 s
    _held("holds a connection without the body of its report", REPORT, 30),
]
ATTACKS = [*SMUGGLING, *ROUTES, *SIZES, *FLOODS]

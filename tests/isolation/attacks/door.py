"""Attacks on a node's door: on its token, on the addresses behind it, and by requests that it forwards."""

from functools import partial

from shared.agent_server.door import ERROR_HEADER, TOKEN_HEADER
from tests.isolation.attack import Attack, Attempt, at
from tests.isolation.attacks.browser import ALICE, DIRECT, PATH
from tests.isolation.attacks.requests import HONEST, LOGIN, OK, OWN_HEADER, SECRETS, TWO, head, raw

attack = partial(Attack, "door")

INSIDE, HOST, OTHER = "A", "host", "other user"
RIGHT = f"{TOKEN_HEADER}: $door_token\r\n"
HEALTH, GREETING = "/$B_ip/8000/health", "agent-workspace listener"


def _at_service_side(place: str, path: str, *lines: str, pattern: str = OK) -> Attempt:
    text = head(path, *lines)
    return at(place, "http.raw", host="$node_address", port="$door_port", text=text, pattern=pattern)


OPENED = _at_service_side(HOST, HEALTH, RIGHT)


def _without(name: str, *lines: str, path: str = HEALTH) -> Attack:
    return attack(name, _at_service_side(OTHER, path, *lines), OPENED)


TOKENS = [
    attack("reaches the service's side with its leaked token", _at_service_side(INSIDE, HEALTH, RIGHT), OPENED),
    attack(
        "asks the sandboxes' side for a neighbour with the leaked token",
        raw(head(HEALTH, RIGHT, OWN_HEADER), OK),
        OPENED,
    ),
    _without("another user asks for a sandbox without a token"),
    _without("another user asks for a sandbox with a wrong token", f"{TOKEN_HEADER}: $token\r\n"),
    _without("another user asks for a sandbox with an empty token", f"{TOKEN_HEADER}:\r\n"),
    _without("another user asks for a sandbox with its session key", "X-Session-API-Key: $B_key\r\n"),
    _without("another user sends the token in the query", path=f"{HEALTH}?{TOKEN_HEADER}=$door_token"),
    _without("another user sends the token as a bearer token", "Authorization: Bearer $door_token\r\n"),
]


def _behind(name: str, host: str, port: str, path: str = "/$host/$port/") -> Attack:
    """An attack on an address that is not a sandbox's, with the token."""
    target = path.replace("$host", host).replace("$port", port)
    return attack(
        f"leads to {name}",
        _at_service_side(HOST, target, RIGHT, pattern=GREETING),
        at(HOST, "network.connect", host=host, port=port),
    )


BEHIND = [
    _behind("a loopback port of the node", "127.0.0.1", "$loopback_port"),
    _behind("a loopback port by an address of one number", "127.0.0.1", "$loopback_port", "/2130706433/$port/"),
    _behind("a loopback port by an octal address", "127.0.0.1", "$loopback_port", "/0177.0.0.01/$port/"),
    _behind("a loopback port by the address of all", "127.0.0.1", "$loopback_port", "/0.0.0.0/$port/"),
    _behind("a port of the node at the gateway", "$A_gateway", "$gateway_port"),
    _behind("a container beside the service's sandboxes", "$peer_ip", "5000"),
    _behind("another machine of the LAN", "$lan", "80"),
    _behind("the node by an absolute address", "127.0.0.1", "$loopback_port", "http://x/$host/$port/"),
    _behind("the node by dots", "127.0.0.1", "$loopback_port", "/$B_ip/8000/../../127.0.0.1/$port/"),
]
POST = head(
    "/api/v1/webhooks/events/$A_conversation", OWN_HEADER, "Transfer-Encoding: chunked\r\n", method="POST", close=False
)
PIPELINE = raw(head("/alive", close=False) + head("/login"), TWO, HOST)


def _in_chunks(name: str, chunks: str) -> Attack:
    """A smuggled request in the body of a report, whose own response may be a refusal."""
    return attack(name, raw(POST + chunks + head("/login"), "HTTP/1.1 \\d+ .*HTTP/1.1 200 "), PIPELINE)


PASSED = [
    _in_chunks("smuggles a request behind a chunk of 0x0 bytes", "0x0\r\n\r\n"),
    _in_chunks("smuggles a request behind a chunk of +0 bytes", "+0\r\n\r\n"),
    _in_chunks("smuggles a request behind a chunk's bare line feed", "0\n\r\n"),
    _in_chunks("smuggles a request in an extension of a chunk", "0;a\n\r\n\r\n"),
    _in_chunks("smuggles a request behind a chunk of 2^64 bytes", "10000000000000000\r\n\r\n"),
    attack(
        "sends a request in a refused upgrade of its secrets",
        raw(
            head(SECRETS, OWN_HEADER, "Upgrade: websocket\r\n", "Connection: upgrade\r\n", close=False)
            + head("/login"),
            TWO,
        ),
        PIPELINE,
    ),
    attack("reads its secrets with its owner's login", raw(head(SECRETS, "Cookie: $cookie\r\n"), OK), HONEST),
    attack(
        "reads secrets of another sandbox by dots",
        raw(head("/api/v1/sandboxes/$A_id/settings/secrets/../../../$B_id/settings/secrets", OWN_HEADER), OK),
        HONEST,
    ),
    attack(
        "reads secrets of another sandbox by an address in a header",
        raw(
            head(SECRETS, OWN_HEADER, "X-Original-URL: /api/v1/sandboxes/$B_id/settings/secrets\r\n"),
            "BOB_SECRET",
        ),
        raw(head(SECRETS, OWN_HEADER), "ALICE_SECRET"),
    ),
    attack("asks for a page after a fragment", raw(head("/api/v1/webhooks/conversations#/../../../login"), OK), LOGIN),
    attack(
        "guesses keys with forged client addresses",
        at("A2", "http.guess", url=f"$service{SECRETS}", count=150, elsewhere=True),
        at(HOST, "http.guess", url=f"$api{SECRETS}", count=150, elsewhere=True),
    ),
    attack(
        "opens connections to the door without a limit",
        at("A2", "http.hold_connections", host="$service_host", port="$service_port", count=400),
        at(HOST, "http.hold_connections", host="127.0.0.1", port="$silent_port", count=400),
    ),
]
RETURNED = [
    attack(
        "learns the token from a request",
        at(HOST, "http.echoes", url=f"{PATH}/echo", headers=ALICE, needle="$door_token"),
        at(HOST, "http.echoes", url=f"{DIRECT}/echo", headers={TOKEN_HEADER: "$door_token"}, needle="$door_token"),
    ),
    attack(
        "answers in the name of the door",
        at(HOST, "http.shows_header", url=f"{PATH}/evil?{ERROR_HEADER}=503", header=ERROR_HEADER, headers=ALICE),
        at(HOST, "http.shows_header", url=f"{DIRECT}/evil?{ERROR_HEADER}=503", header=ERROR_HEADER),
    ),
]
ATTACKS = [*TOKENS, *BEHIND, *PASSED, *RETURNED]

"""Probes that send HTTP requests, well-formed or not."""

import http.client
import json
import re
import socket
import time
from urllib.parse import urlsplit

from tests.isolation.probes.base import Outcome

SECONDS = 10.0
SUCCESS = range(200, 300)
TOO_MANY = 429


def exchange(
    url: str, method: str = "GET", headers: dict[str, str] | None = None, body: str | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Send a request; return the status, the headers (names in lower case) and the body of the response."""
    parts, connection = urlsplit(url), _open(url)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    connection.request(method, target or "/", body, headers or {})
    response = connection.getresponse()
    found = {name.lower(): value for name, value in response.getheaders()}
    return response.status, found, response.read(200_000)


def request(
    url: str,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    body: str | None = None,
    statuses: list[int] | None = None,
    contains: str = "",
) -> Outcome:
    """Send a request that gets one of these statuses, 2xx by default, and a body with this text."""
    status, _, response = exchange(url, method, headers, body)
    good = status in (statuses or SUCCESS) and contains.encode() in response
    return good, f"{status} {response[:80]!r}"


def opens_stream(url: str, headers: dict[str, str]) -> Outcome:
    """Send a request that gets a 2xx. The body is not read: that of a stream has no end."""
    connection = _open(url)
    connection.request("GET", urlsplit(url).path, headers=headers)
    status = connection.getresponse().status
    return status in SUCCESS, f"{status}"


def serves(url: str, method: str = "GET", headers: dict[str, str] | None = None, body: str | None = None) -> Outcome:
    """Send a request that the API itself handles: neither "not found" nor "forbidden" nor a refusal by a proxy."""
    status, _, response = exchange(url, method, headers, body)
    return status not in (403, 404, 405, 502, 503), f"{status} {response[:80]!r}"


def shows_header(url: str, header: str, headers: dict[str, str] | None = None, value: str = "") -> Outcome:
    """Get a response with this header, and this text in it."""
    status, found, _ = exchange(url, headers=headers)
    return value in found.get(header.lower(), "") and header.lower() in found, f"{status} {found.get(header.lower())!r}"


def lacks_header(url: str, header: str, value: str, headers: dict[str, str] | None = None) -> Outcome:
    """Get a response without the header that protects a browser."""
    status, found, _ = exchange(url, headers=headers)
    return value not in found.get(header.lower(), ""), f"{status} {found.get(header.lower())!r}"


def echoes(url: str, headers: dict[str, str], needle: str) -> Outcome:
    """Find a text in the request as the server received it."""
    status, _, response = exchange(url, headers=headers)
    return (
        status == 200 and needle.encode() in response,
        f"{status}, {'with' if needle.encode() in response else 'without'}",
    )


def raw(host: str, port: int, text: str, pattern: str, seconds: float = 5.0) -> Outcome:
    """Send bytes; find a pattern in all received bytes, in which `.` matches line breaks, too."""
    received = b""
    with socket.create_connection((host, int(port)), seconds) as connection:
        connection.sendall(text.encode("latin-1"))
        try:
            while (part := connection.recv(65_536)) and not re.search(pattern.encode(), received + part, re.DOTALL):
                received += part
            received += part
        except (TimeoutError, ConnectionResetError):
            pass
    found = re.search(pattern.encode(), received, re.DOTALL)
    return bool(found), repr(received[:120])


def deep_json(url: str, headers: dict[str, str], depth: int) -> Outcome:
    """Send nested lists, or an honest empty report for a depth of 0; return whether the API accepts it or fails."""
    status, _, response = exchange(url, "POST", headers, "[" * depth + "]" * depth or "[]")
    return status in SUCCESS or status >= 500, f"{status} {response[:60]!r}"


def large_body(url: str, headers: dict[str, str], megabytes: int) -> Outcome:
    """Send an empty report padded with spaces."""
    status, _, response = exchange(url, "POST", headers, f"[{' ' * (megabytes * 1024 * 1024)}]")
    return status in SUCCESS, f"{status} {response[:60]!r}"


def flood_conversations(url: str, headers: dict[str, str], report: str, count: int) -> Outcome:
    """Report many unknown conversations."""
    described = json.loads(report)
    bodies = [json.dumps({**described, "id": f"{number:032x}"}) for number in range(1 << 64, (1 << 64) + count)]
    return _send(url, headers, bodies)


def flood_events(url: str, headers: dict[str, str], count: int, size: int) -> Outcome:
    """Report many events of a size."""
    event = {"kind": "MessageEvent", "timestamp": "2026-01-01T00:00:00", "source": "agent", "text": "x" * size}
    return _send(url, headers, [json.dumps([{**event, "id": f"flood-{one}"}]) for one in range(count)])


def guess(url: str, count: int, elsewhere: bool = False) -> Outcome:
    """Guess keys until a 429 refuses their number; `elsewhere`: each guess with a forged client address."""
    connection = _open(url)
    for number in range(count):
        address = {"X-Forwarded-For": f"198.51.100.{number}"} if elsewhere else {}
        connection.request("GET", urlsplit(url).path, headers={"X-Session-API-Key": f"guess-{number}", **address})
        response = connection.getresponse()
        response.read()
        if response.status == TOO_MANY:
            return False, f"429 after {number}"
    return True, f"{count} guesses"


def _send(url: str, headers: dict[str, str], bodies: list[str]) -> Outcome:
    connection, statuses = _open(url), dict[int, int]()
    for body in bodies:
        connection.request("POST", urlsplit(url).path, body, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        response.read()
        statuses[response.status] = statuses.get(response.status, 0) + 1
        if response.status == TOO_MANY:
            break
    return TOO_MANY not in statuses and any(code in SUCCESS for code in statuses), str(statuses)


def _open(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    return http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=SECONDS)


def hold_connections(host: str, port: int, count: int) -> Outcome:
    """Hold many connections at the same time, each with half a request."""
    held: list[socket.socket] = []
    try:
        for _ in range(count):
            held.append(socket.create_connection((host, int(port)), SECONDS))
            held[-1].sendall(b"GET / HTTP/1.1\r\n")
        time.sleep(1)
        open_ones = [one for one in held if not _has_ended(one)]
    except OSError as error:
        return False, f"{type(error).__name__} after {len(held)}"
    finally:
        for one in held:
            one.close()
    return len(open_ones) == count, f"{len(open_ones)} of {count}"


def _has_ended(connection: socket.socket) -> bool:
    connection.settimeout(0)
    try:
        return not connection.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True

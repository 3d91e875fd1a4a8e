"""A probe that waits for most of a minute, in its own file, so that no other probe waits for it."""

import socket

from tests.isolation.probes.base import Outcome


def slow_body(host: str, port: int, head: str, seconds: float) -> Outcome:
    """Send no byte of a request's body; return whether the server keeps the connection longer than the limit."""
    with socket.create_connection((host, int(port)), seconds) as connection:
        connection.sendall(head.encode())
        try:
            said = connection.recv(1000)
        except TimeoutError:
            return True, f"held for {seconds} s"
    return False, f"ended: {said[:60]!r}"

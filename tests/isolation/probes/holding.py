"""A probe that waits for most of a minute: in a file of its own, so that nothing waits for it."""

import socket

from tests.isolation.probes.base import Outcome


def slow_body(host: str, port: int, head: str, seconds: float) -> Outcome:
    """A body of which no byte comes: whether the connection is held for longer than that."""
    with socket.create_connection((host, int(port)), seconds) as connection:
        connection.sendall(head.encode())
        try:
            said = connection.recv(1000)
        except TimeoutError:
            return True, f"held for {seconds} s"
    return False, f"ended: {said[:60]!r}"

"""Limits of a connection and of what its client sends at a time."""

from dataclasses import dataclass

# Max bytes of URL and headers; trailers have the same limit. Those that are incomplete are counted after each read.
MAX_HEAD_BYTES = 65_536
# Max headers of a request. The proxy adds some when it forwards the request, and a door accepts 255.
MAX_HEADERS = 200
# Max bytes of a websocket's first message if it must contain the key; a key is much shorter.
MAX_AUTH_BYTES = 4096
# Max requests that wait for the response to an earlier one of their connection. One more ends the connection.
MAX_PIPELINED = 16
# File descriptors of a proxied connection, one on each side, and of all else: the database, the broker, git providers.
PER_CONNECTION = 2
SPARE_DESCRIPTORS = 256


@dataclass(frozen=True)
class ConnectionLimits:
    """A client's limits, in seconds and bytes."""

    # From the connection, or from the first byte, to the end of a request's headers.
    head_seconds: float = 20.0
    # The min bytes of a body per second, in each period. 0: any.
    body_bytes_per_second: int = 512
    body_period: float = 10.0
    # The min bytes per second, in each period, that a client reads of what is larger than the buffers.
    read_bytes_per_second: int = 512
    read_period: float = 60.0
    # The max bytes of responses that all clients together have not read. Beyond, the slowest lose their connections.
    unread_bytes: int = 256 * 1024 * 1024


def fit_connections(wanted: int, descriptors: int) -> int:
    """Return how many of the wanted connections a process can have open with this number of file descriptors."""
    spare = min(SPARE_DESCRIPTORS, descriptors // 2)
    return min(wanted, max(1, (descriptors - spare) // PER_CONNECTION))

"""Limits of a connection and of what its client sends at a time."""

from dataclasses import dataclass

# URL and headers, bytes. Trailers have the same limit. What is not complete is counted after each read.
MAX_HEAD_BYTES = 65_536
# A request that the proxy forwards has some more, and a door accepts 255.
MAX_HEADERS = 200
# Requests that wait for the response to an earlier one of their connection. The next one ends the connection.
MAX_PIPELINED = 16


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

"""Ports that stay reserved while their server is away: it may be started later, or killed and started again."""

import random
import socket
from contextlib import suppress

# Below those that the kernel gives to connections, and engines to containers.
PORTS = range(20_000, 32_768)
SHARED = (socket.SO_REUSEADDR, socket.SO_REUSEPORT)


class Port:
    """A port of all addresses of this machine that no other holder of a port has.

    The reservation is a bound socket that doesn't listen. Servers of this user that set SO_REUSEADDR or SO_REUSEPORT
    can listen on the port beside it.
    """

    def __init__(self) -> None:
        self._socket = _bind()
        self.number = int(self._socket.getsockname()[1])

    def release(self) -> None:
        """Give the port up."""
        self._socket.close()

    def __enter__(self) -> int:
        return self.number

    def __exit__(self, *_: object) -> None:
        self.release()


def _bind() -> socket.socket:
    for port in random.sample(PORTS, len(PORTS)):
        reservation = socket.socket()
        with suppress(OSError):
            # Exclusively, so that it fails where a reservation or a server is. Only then are servers let in.
            reservation.bind(("0.0.0.0", port))
            for option in SHARED:
                reservation.setsockopt(socket.SOL_SOCKET, option, 1)
            return reservation
        reservation.close()
    raise RuntimeError(f"no port of {PORTS} is free")

"""Ports that stay reserved while their server is down, so that it can be restarted."""

import random
import socket
from contextlib import suppress

# Below the ports that the kernel assigns to connections and engines assign to containers.
PORTS = range(20_000, 32_768)
SHARED = (socket.SO_REUSEADDR, socket.SO_REUSEPORT)


class Port:
    """A port that is reserved at all addresses of this machine.

    The reservation is a bound socket that does not listen. Servers of this user that set SO_REUSEADDR or SO_REUSEPORT
    can listen on the same port.
    """

    def __init__(self) -> None:
        self._socket = _bind()
        self.number = int(self._socket.getsockname()[1])

    def release(self) -> None:
        """Release the port."""
        self._socket.close()

    def __enter__(self) -> int:
        return self.number

    def __exit__(self, *_: object) -> None:
        self.release()


def _bind() -> socket.socket:
    for port in random.sample(PORTS, len(PORTS)):
        reservation = socket.socket()
        with suppress(OSError):
            # Bind exclusively, so that it fails if there is another reservation or a server. Then admit servers.
            reservation.bind(("0.0.0.0", port))
            for option in SHARED:
                reservation.setsockopt(socket.SOL_SOCKET, option, 1)
            return reservation
        reservation.close()
    raise RuntimeError(f"no port of {PORTS} is free")

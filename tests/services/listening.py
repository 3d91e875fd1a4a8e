"""A server that accepts connections and closes them, at an address that this machine may not have yet."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# Linux's option to bind to an address that does not exist yet.
IP_FREEBIND = 15


@contextmanager
def listening(address: str) -> Iterator[int]:
    """Run the server for the length of the block; yield its port."""
    with socket.socket() as server:
        server.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
        server.bind((address, 0))
        server.listen()
        thread = threading.Thread(target=_serve, args=(server,), daemon=True)
        thread.start()
        try:
            yield int(server.getsockname()[1])
        finally:
            server.shutdown(socket.SHUT_RDWR)  # also ends a pending `accept`
            thread.join()


def _serve(server: socket.socket) -> None:
    with suppress(OSError):
        while True:
            server.accept()[0].close()

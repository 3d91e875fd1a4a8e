"""A server that takes connections and closes them, at an address that this machine may get later."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# Linux's option that binds to an address which is not there yet.
IP_FREEBIND = 15


@contextmanager
def listening(address: str) -> Iterator[int]:
    """Its port, for the length of the block."""
    with socket.socket() as server:
        server.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
        server.bind((address, 0))
        server.listen()
        thread = threading.Thread(target=_serve, args=(server,), daemon=True)
        thread.start()
        try:
            yield int(server.getsockname()[1])
        finally:
            server.shutdown(socket.SHUT_RDWR)  # ends a call of `accept` as well
            thread.join()


def _serve(server: socket.socket) -> None:
    with suppress(OSError):
        while True:
            server.accept()[0].close()

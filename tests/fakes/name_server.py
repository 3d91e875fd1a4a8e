"""A name server that has one address, or none, for every name."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from ipaddress import IPv4Address

# The flags of a response, with the code 0 or 3 (RFC 1035, section 4.1.1).
FOUND, UNKNOWN = b"\x81\x80", b"\x81\x83"
# The type A and the class IN.
ADDRESS = b"\0\1\0\1"


@contextmanager
def naming(address: str | None) -> Iterator[str]:
    """Run a name server for the length of the block; yield its own address and port.

    Args:
        address: the address of every name; None: no name exists.
    """
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as server:
        server.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=_serve, args=(server, address))
        thread.start()
        try:
            yield "127.0.0.1:{1}".format(*server.getsockname())
        finally:
            with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as last:
                last.sendto(b"", server.getsockname())
            thread.join(10)


def _serve(server: socket.socket, address: str | None) -> None:
    while True:
        query, client = server.recvfrom(4096)
        if not query:
            return
        server.sendto(_answer(query, address), client)


def _answer(query: bytes, address: str | None) -> bytes:
    end = query.index(b"\0", 12) + 1
    question = query[12 : end + 4]
    is_known = address is not None and question.endswith(ADDRESS)
    head = query[:2] + (UNKNOWN if address is None else FOUND) + bytes([0, 1, 0, is_known, 0, 0, 0, 0])
    # The name of the record is that of the question; it is valid for a second.
    record = b"\xc0\x0c" + ADDRESS + bytes([0, 0, 0, 1, 0, 4]) + IPv4Address(address).packed if is_known else b""
    return head + question + record

"""Listeners of the tests, inside a sandbox or elsewhere, for a quarter of an hour at most.

The arguments are LISTENERS, a JSON list of [kind, address, port], and the file HEARD, which gets the contents of
datagrams.
"""

import contextlib
import json
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Iterator

GREETING = b"agent-workspace listener"
HEARD = sys.argv[-1]
SECONDS = 900


def serve_stream(address: str, port: int) -> Iterator[None]:
    """Greet each client."""
    with socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as one:
        yield
        while True:
            connection, _ = one.accept()
            with connection:
                connection.sendall(b"HTTP/1.0 200 OK\r\nX-Listener: yes\r\n\r\n" + GREETING + b"\n")


def serve_datagrams(address: str, port: int, protocol: int = 0) -> Iterator[None]:
    """Respond to each datagram, and record its content."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, protocol) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((address, port))
        if address == "0.0.0.0":
            with contextlib.suppress(OSError):
                group = struct.pack("4sI", bytes([224, 0, 0, 251]), 0)
                one.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
        yield
        while True:
            said, client = one.recvfrom(65_536)
            with open(HEARD, "a") as file:
                file.write(said[:60].decode(errors="replace").rstrip("\0x") + "\n")
            one.sendto(GREETING, client)


def serve_lite(address: str, port: int) -> Iterator[None]:
    """Respond to UDP-Lite datagrams, and record their contents."""
    return serve_datagrams(address, port, socket.IPPROTO_UDPLITE)


def serve_silence(address: str, port: int) -> Iterator[None]:
    """Accept clients, and send nothing."""
    with socket.create_server((address, port)) as one:
        yield
        kept = []
        while True:
            kept.append(one.accept()[0])


def serve_names(address: str, port: int) -> Iterator[None]:
    """Respond to each DNS query with "no such name"."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((address, port))
        yield
        while True:
            query, client = one.recvfrom(4096)
            one.sendto(query[:2] + b"\x81\x83" + query[4:], client)


def main() -> None:
    """Start all listeners, print a line, and end after a quarter of an hour."""
    kinds = {
        "tcp": serve_stream,
        "udp": serve_datagrams,
        "lite": serve_lite,
        "dns": serve_names,
        "silent": serve_silence,
    }
    open(HEARD, "a").close()
    servers = [kinds[kind](address, port) for kind, address, port in json.loads(sys.argv[1])]
    for bound in filter(bind, servers):
        threading.Thread(target=list, args=(bound,), daemon=True).start()
    print("listening", flush=True)
    time.sleep(SECONDS)


def bind(server: Iterator[None]) -> bool:
    """Run a server until it is bound; return False if it can't be, as where the kernel lacks its protocol."""
    try:
        next(server)
    except OSError:
        traceback.print_exc()
        return False
    return True


if __name__ == "__main__":
    main()

"""The servers outside a node with an egress proxy: a web server, and a name server with the tests' names.

Run this file in a network namespace as `python3 outside.py ASKED NAMES`. NAMES is a JSON object with the addresses of
each name, one list for each response; the last one is repeated. ASKED is the file that records the requested names.
"""

import asyncio
import json
import socket
import struct
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

DNS, PORTS = 53, (80, 443, 8443, 2222)
A, AAAA = 1, 28


class NameServer(asyncio.DatagramProtocol):
    """Responds with a time to live of 0, so that a second query may get another response."""

    def __init__(self, requested: Path, names: dict[str, list[list[str]]]) -> None:
        self.requested, self.names = requested, names
        self.count: Counter[tuple[str, int]] = Counter()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, query: bytes, client: tuple[str | int, int]) -> None:
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode(errors="replace").lower())
            at += 1 + query[at]
        name, (kind,) = ".".join(labels), struct.unpack("!H", query[at + 1 : at + 3])
        with self.requested.open("a") as file:
            file.write(f"{name}\n")
        known = self.names.get(name)
        found = self._addresses(name, kind, known) if known else []
        head = query[:2] + struct.pack("!HHHHH", 0x8180 if known else 0x8183, 1, len(found), 0, 0)
        self.transport.sendto(head + query[12 : at + 5] + b"".join(map(_record, found)), client)

    def _addresses(self, name: str, kind: int, known: list[list[str]]) -> list[str]:
        response = known[min(self.count[name, kind], len(known) - 1)]
        self.count[name, kind] += 1
        return [address for address in response if (AAAA if ":" in address else A) == kind]


def _record(address: str) -> bytes:
    family, kind = (socket.AF_INET6, AAAA) if ":" in address else (socket.AF_INET, A)
    data = socket.inet_pton(family, address)
    return b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 0, len(data)) + data


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Respond to a request with the request's own head."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(head) + head)
        await writer.drain()
    writer.close()


async def main(requested: str, names: str) -> None:
    """Serve until the process is killed."""
    for port in PORTS:
        await asyncio.start_server(serve, "0.0.0.0", port)
    server = NameServer(Path(requested), json.loads(names))
    await asyncio.get_running_loop().create_datagram_endpoint(lambda: server, local_addr=("0.0.0.0", DNS))
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

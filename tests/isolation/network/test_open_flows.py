"""Open connections and datagram flows while a sandbox's egress is closed."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shared.sandboxes import specs
from tests.isolation.network.testbed import LISTED, OPEN, OTHER_LAN, PUBLIC, NetworkTestbed
from tests.services import processes
from tests.services.namespaces import Namespace
from tests.waiting import eventually

PORT = 9999
# Sends the time without an end to each client.
SOURCE = """
import asyncio, sys, time
def line(): return b"%f\\n" % time.monotonic()
class Datagrams(asyncio.DatagramProtocol):
    def connection_made(self, transport): self.transport = transport
    def datagram_received(self, data, source): asyncio.ensure_future(self.send(source))
    async def send(self, source):
        while True:
            self.transport.sendto(line(), source)
            await asyncio.sleep(0.05)
async def stream(reader, writer):
    while True:
        writer.write(line())
        await asyncio.sleep(0.05)
async def main(port, *addresses):
    loop = asyncio.get_running_loop()
    for address in addresses:
        await asyncio.start_server(stream, address, port)
        await loop.create_datagram_endpoint(Datagrams, local_addr=(address, port))
    print("listening", flush=True)
    await asyncio.Event().wait()
asyncio.run(main(int(sys.argv[1]), *sys.argv[2:]))
"""
# Prints what it receives, and ends after a silence much longer than the source's interval.
RECEIVER = """
import socket, sys
kind = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}[sys.argv[1]]
with socket.socket(socket.AF_INET, kind) as plug:
    plug.settimeout(3)
    plug.connect((sys.argv[2], int(sys.argv[3])))
    plug.send(b"?")
    try:
        while data := plug.recv(65536):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
    except OSError:
        pass
"""


@pytest.mark.parametrize(("spec", "address"), [(OPEN, PUBLIC), (LISTED, OTHER_LAN)])
def test_open_flows_end_when_egress_closes(testbed: NetworkTestbed, spec: str, address: str, tmp_path: Path) -> None:
    testbed.isolation.refresh()
    command = [*testbed.lan.command, sys.executable, "-IS", "-c", SOURCE, str(PORT), address]
    source = processes.start(command, tmp_path / "source.log")
    try:
        eventually(lambda: "listening" in (tmp_path / "source.log").read_text(), deadline_seconds=30)
        inside = testbed.inside(spec)
        with receiving(inside, "tcp", address) as stream, receiving(inside, "udp", address) as datagrams:
            testbed.isolation.refresh()
            refreshed = time.monotonic()
            assert has_data_since(refreshed, stream)
            assert has_data_since(refreshed, datagrams)
            with testbed.database.transaction() as session:
                specs.change(session, spec, {"egress": "none"})
            testbed.isolation.refresh()
            eventually(lambda: None not in (stream.poll(), datagrams.poll()), deadline_seconds=30)
    finally:
        processes.stop(source)


@contextmanager
def receiving(place: Namespace, protocol: str, address: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a program in a sandbox that receives the source's data."""
    command = [*place.command, sys.executable, "-IS", "-c", RECEIVER, protocol, address, str(PORT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert has_data_since(0, running)
            yield running
        finally:
            running.kill()


def has_data_since(moment: float, receiver: "subprocess.Popen[str]") -> bool:
    """Wait for data that the source sent after a moment; return False if the receiver ends first."""
    assert receiver.stdout is not None
    return any(float(line) > moment for line in receiver.stdout)

"""Network namespaces: separate machines with respect to addresses, routes and firewalls. No packet leaves them."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Network
from pathlib import Path

from shared.ids import new_id
from tests.services import leases, processes

NAMESPACES = Path("/run/netns")
PREFIX = "awtest"
# Accepts connections and echoes datagrams at these addresses and ports; prints a line when it is ready.
SERVER = """
import asyncio, sys
class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport): self.transport = transport
    def datagram_received(self, data, source): self.transport.sendto(data, source)
async def main(addresses, ports):
    loop = asyncio.get_running_loop()
    for address in addresses.split(","):
        for port in map(int, ports.split(",")):
            await asyncio.start_server(lambda reader, writer: writer.write(b"here"), address, port)
            await loop.create_datagram_endpoint(Echo, local_addr=(address, port))
    print("listening", flush=True)
    await asyncio.Event().wait()
asyncio.run(main(*sys.argv[1:]))
"""
# Reads a list of `[protocol, address, port]`; prints for each whether a server responds.
PROBE = """
import asyncio, json, socket, sys
SECONDS = 4
async def tcp(address, port):
    reader, writer = await asyncio.open_connection(address, port)
    writer.close()
async def udp(address, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plug:
        plug.setblocking(False)
        plug.connect((address, port))
        plug.send(b"?")
        await asyncio.get_running_loop().sock_recv(plug, 9)
async def answers(protocol, *target):
    try:
        await asyncio.wait_for({"tcp": tcp, "udp": udp}[protocol](*target), SECONDS)
    except (OSError, asyncio.TimeoutError):
        return False
    return True
async def main():
    return await asyncio.gather(*(answers(*each) for each in json.load(sys.stdin)))
print(json.dumps(asyncio.run(main())))
"""
Target = tuple[str, str, int]


class Namespace:
    """A network namespace."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def command(self) -> list[str]:
        """The prefix of a command that runs in the namespace."""
        return ["nsenter", f"--net={self.path}"]

    def run(self, *command: str, text: str | None = None) -> str:
        """Run a command in the namespace; return its output.

        Raises:
            AssertionError: the command failed.
        """
        done = subprocess.run([*self.command, *command], input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def probe(self, targets: Sequence[Target]) -> list[bool]:
        """Probe all targets at once from the namespace; return for each whether a server responds."""
        found: list[bool] = json.loads(self.run(sys.executable, "-IS", "-c", PROBE, text=json.dumps(targets)))
        return found

    def count_packets_to(self, network: IPv4Network) -> None:
        """Begin to count the packets to these addresses that the namespace receives."""
        chain = "add table ip counted; add chain ip counted received { type filter hook prerouting priority raw; }"
        self.run("nft", f"{chain}; add rule ip counted received ip daddr {network} counter")

    def counted_packets(self) -> int:
        """The number of packets since `count_packets_to`."""
        found = re.search(r"counter packets (\d+)", self.run("nft", "list", "table", "ip", "counted"))
        assert found is not None
        return int(found[1])

    @contextmanager
    def listening(self, log: Path, *ports: int, addresses: Sequence[str] = ("0.0.0.0",)) -> Iterator[None]:
        """Run a TCP and UDP server at these ports. Only with a named address do datagrams get responses from it."""
        command = [*self.command, sys.executable, "-IS", "-c", SERVER, ",".join(addresses), ",".join(map(str, ports))]
        server = processes.start(command, log)
        try:
            while "listening" not in log.read_text():
                assert server.poll() is None, log.read_text()
            yield
        finally:
            processes.stop(server)


@contextmanager
def running_namespace() -> Iterator[Namespace]:
    """Create a namespace for the length of the block; first remove those of killed tests."""
    for left in NAMESPACES.glob(f"{PREFIX}-*"):
        if leases.has_ended(left.name.split("-")[1]):
            subprocess.run(["ip", "netns", "delete", left.name], check=False, capture_output=True)
    name = f"{PREFIX}-{leases.own_lease()}-{new_id()[:8]}"
    subprocess.run(["ip", "netns", "add", name], check=True, capture_output=True)
    try:
        found = Namespace(NAMESPACES / name)
        found.run("ip", "link", "set", "lo", "up")
        yield found
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)

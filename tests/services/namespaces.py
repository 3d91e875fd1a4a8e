"""Network namespaces: machines of their own, as far as addresses, routes and firewalls go. No packet leaves them."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shared.ids import new_id
from tests.services import leases, processes

NAMESPACES = Path("/run/netns")
PREFIX = "awtest"
# Accepts connections and echoes datagrams at these addresses and ports, and says so.
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
# Reads `[protocol, address, port]`s, and writes for each whether something answers there.
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
    """A namespace by its file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def command(self) -> list[str]:
        """The beginning of a command that runs in it."""
        return ["nsenter", f"--net={self.path}"]

    def run(self, *command: str, text: str | None = None) -> str:
        """The output of a command in it.

        Raises:
            AssertionError: it failed.
        """
        done = subprocess.run([*self.command, *command], input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def probe(self, targets: Sequence[Target]) -> list[bool]:
        """Whether something answers at each target, asked from here, all at the same time."""
        found: list[bool] = json.loads(self.run(sys.executable, "-IS", "-c", PROBE, text=json.dumps(targets)))
        return found

    @contextmanager
    def listening(self, log: Path, *ports: int, addresses: Sequence[str] = ("0.0.0.0",)) -> Iterator[None]:
        """A server at these ports, TCP and UDP. Datagrams are answered from the address only where it is named."""
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
    """A new namespace, for the length of the block; those of killed tests are removed first."""
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

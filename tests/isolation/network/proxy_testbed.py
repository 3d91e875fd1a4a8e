"""A node with an egress proxy, two sandboxes and the servers outside, all in network namespaces without an engine."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from shared.crypto import new_secret_key
from shared.sandboxes import egress
from tests.isolation.network import outside
from tests.isolation.network.stepped_program import SteppedProgram, running_program
from tests.services import own_users, processes
from tests.services.directories import short_directory
from tests.services.forks import Fork
from tests.services.namespaces import Namespace, running_namespace
from tests.waiting import eventually
from worker.network import proxy
from worker.network.firewall import LocalFirewall
from worker.network.proxy import EgressProxy
from worker.network.rules import Allowed, Bridge, element

NETWORK = IPv4Network("10.98.0.0/24")
NODE, NAMED, OTHER = "10.98.0.1", "10.98.0.5", "10.98.0.6"
NODE_ON_LAN, LAN = "192.168.78.1", "192.168.78.2"
PUBLIC, PUBLIC_6, METADATA = "8.8.8.8", "2600::8", "169.254.169.254"
PORT, SERVICE = 3003, 3001
KEY = new_secret_key()
EGRESS = "good.example,*.wild.example,port.example:8443,*.bad.example"
# The addresses of the tests' names, one list for each response.
NAMES: dict[str, list[list[str]]] = {
    "good.example": [[PUBLIC]],
    "deep.below.wild.example": [[PUBLIC]],
    "wild.example": [[PUBLIC]],
    "port.example": [[PUBLIC]],
    "other.example": [[PUBLIC]],
    "both.wild.example": [[PUBLIC, PUBLIC_6]],
    "loopback.bad.example": [["127.0.0.1"]],
    "metadata.bad.example": [[METADATA]],
    "lan.bad.example": [[LAN]],
    "node.bad.example": [[NODE]],
    "neighbour.bad.example": [[OTHER]],
    "any.bad.example": [["0.0.0.0"]],
    "loopback6.bad.example": [["::1"]],
    "local6.bad.example": [["fd00::1"]],
    "mapped.bad.example": [["::ffff:127.0.0.1"]],
    "translated.bad.example": [["64:ff9b::a9fe:a9fe"]],
    "mixed.bad.example": [[PUBLIC, "127.0.0.1"]],
    # A public address for the first query, and another for the second.
    "rebinding.bad.example": [[PUBLIC], [LAN]],
}
# This machine may lack the proxy's user, so the proxy runs with an extended list of users.
PROXY_USER = own_users.EGRESS
BRIDGE = Bridge("br-awproxy", NETWORK, PROXY_USER)


@dataclass(frozen=True)
class ProxyTestbed:
    """The node, its sandboxes, and the queries that the name server got."""

    node: Namespace
    named: Namespace
    other: Namespace
    firewall: LocalFirewall
    proxy: EgressProxy
    requested: Path
    # The pid of Squid.
    pid: int

    def send(self, *texts: str) -> list[str]:
        """Send requests from the sandbox to the proxy; return the responses."""
        return exchange(self.named, NODE, PORT, texts)

    def set_egress(self, text: str, *, uses_proxy: bool = True) -> None:
        """Apply a change of a sandbox's egress, as a worker does."""
        found = proxy.targets(egress.parse(text), uses_proxy=uses_proxy)
        self.proxy.allow(NAMED, found)
        self.firewall.write(allowed(is_proxied=bool(found)))

    def names_queried(self) -> set[str]:
        """The names that the name server was queried for."""
        return set(self.requested.read_text().split())


def allowed(*, is_proxied: bool) -> Allowed:
    """The rules: one sandbox may use the proxy, both may reach the service."""
    return Allowed(
        services=frozenset({element(NODE, SERVICE)}),
        sandboxes=frozenset({NAMED, OTHER}),
        models=frozenset({element(NAMED, NODE, PORT)}) if is_proxied else frozenset(),
    )


# Reads a list of texts. Sends each on its own connection, waiting for a response at each `<pause>`. Prints what it
# receives until the server closes the connection, or sends nothing for some seconds.
EXCHANGE = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def exchange(text):
    found, parts = b"", text.encode(errors="surrogateescape").split(b"<pause>")
    try:
        with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5) as plug:
            for part in parts[:-1]:
                plug.sendall(part)
                found += plug.recv(65536)
            plug.sendall(parts[-1])
            while data := plug.recv(65536):
                found += data
    except OSError:
        pass
    return found.decode(errors="replace")
with ThreadPoolExecutor(64) as threads:
    json.dump(list(threads.map(exchange, json.load(sys.stdin))), sys.stdout)
"""


def exchange(
    place: Namespace, address: str, port: int, texts: Sequence[str], identity: Sequence[str] = ()
) -> list[str]:
    """Send texts to a server concurrently; return what each gets, or an empty string without a connection."""
    command = (*identity, "python3", "-IS", "-c", EXCHANGE, address, str(port))
    found: list[str] = json.loads(place.run(*command, text=json.dumps(texts)))
    return found


# Opens a tunnel, and runs until the other side closes it. For each line it sends a request and prints the response.
TUNNEL = """
import select, socket, sys
plug = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20)
plug.sendall(f"CONNECT {sys.argv[3]} HTTP/1.1\\r\\n\\r\\n".encode())
print(plug.recv(65536).split()[1].decode(), flush=True)
plug.settimeout(None)
while plug not in (ready := select.select([plug, sys.stdin], [], [])[0]):
    sys.stdin.readline()
    plug.sendall(b"GET /x HTTP/1.1\\r\\n\\r\\n")
    print(plug.recv(65536).split(b"\\r")[0].decode(), flush=True)
"""


@contextmanager
def open_tunnel(place: Namespace, target: str) -> Iterator[SteppedProgram]:
    """Open a tunnel to `host:port`, and close it after the block. A step sends a request, and returns its status line.

    The server closes the connection after its response.
    """
    with running_program(place, TUNNEL, NODE, str(PORT), target) as tunnel:
        assert tunnel.read() == "200"
        yield tunnel


@contextmanager
def open_proxy_testbed() -> Iterator[ProxyTestbed]:
    """Start the testbed for the length of the block, and wait until the proxy listens."""
    with ExitStack() as stack:
        directory = stack.enter_context(short_directory("proxy"))
        node, around, named, other = (stack.enter_context(running_namespace()) for _ in range(4))
        connect_machines(node, around, named, other)
        requested = directory / "asked"
        command = [*around.command, sys.executable, "-IS", outside.__file__, str(requested), json.dumps(NAMES)]
        stack.callback(processes.stop, _started(command, directory / "outside.log", "listening"))
        firewall = LocalFirewall(BRIDGE, node.command)
        proxy = EgressProxy(directory / "run" / "egress" / NODE, NODE, PORT, firewall)
        variables = {
            "AW_VAR_DIR": directory,
            "AW_SANDBOX_ADDRESSES": NETWORK,
            "AW_SANDBOX_DNS": LAN,
            "AW_SECRET_KEYS": KEY,
        }
        settings = [f"{name}={value}" for name, value in variables.items()]
        (stage := stack.enter_context(short_directory("users"))).chmod(0o755)
        run = [*own_users.launcher(stage), *node.command, "env", *settings, sys.executable, "-m", "deploy.egress_proxy"]
        server, log = processes.start(run, directory / "proxy.log"), directory / "proxy.log"
        stack.callback(processes.stop, server)
        testbed = ProxyTestbed(node, named, other, firewall, proxy, requested, server.pid)
        testbed.set_egress(EGRESS)

        def listens() -> bool:
            assert server.poll() is None, log.read_text()
            return testbed.node.probe([("tcp", NODE, PORT)]) == [True]

        eventually(listens, deadline_seconds=60)
        yield testbed


def _started(command: list[str], log: Path, word: str) -> "subprocess.Popen[bytes]":
    server = processes.start(command, log)
    eventually(lambda: word in log.read_text(), deadline_seconds=30)
    return server


def connect_machines(node: Namespace, around: Namespace, named: Namespace, other: Namespace) -> None:
    """Connect both sandboxes to the node's bridge, and everything else to a link of the node."""
    node.run("ip", "link", "add", BRIDGE.name, "type", "bridge")
    node.run("ip", "address", "add", f"{NODE}/24", "dev", BRIDGE.name)
    node.run("ip", "link", "set", BRIDGE.name, "up")
    node.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
    for number, (place, address) in enumerate(((named, NAMED), (other, OTHER))):
        link_place(node, f"sandbox{number}", place, address)
        node.run("ip", "link", "set", f"sandbox{number}", "master", BRIDGE.name, "up")
        place.run("ip", "route", "add", "default", "via", NODE)
    link_place(node, "lan0", around, LAN)
    node.run("ip", "address", "add", f"{NODE_ON_LAN}/24", "dev", "lan0")
    node.run("ip", "link", "set", "lan0", "up")
    node.run("ip", "route", "add", "default", "via", LAN)
    for address in (PUBLIC, METADATA):
        around.run("ip", "address", "add", f"{address}/32", "dev", "lo")
    around.run("ip", "route", "add", str(NETWORK), "via", NODE_ON_LAN)


@contextmanager
def running_door(node: Namespace, directory: Path, key: str, files: tuple[int, int] | None = None) -> Iterator[Fork]:
    """Run the node's door with this secret key, and with limits of open files, for the length of the block."""
    variables = {
        "AW_VAR_DIR": directory,
        "AW_SANDBOX_ADDRESSES": NETWORK,
        "AW_SECRET_KEYS": key,
        "AW_DOOR_PORT": SERVICE,
    }
    environment = {name: str(value) for name, value in variables.items()}
    door = Fork(["deploy.door"], environment, directory / "door.log", namespace=node.path, files=files)
    try:
        eventually(lambda: node.probe([("tcp", NODE, SERVICE)]) == [True], deadline_seconds=60)
        yield door
    finally:
        door.stop()


def link_place(node: Namespace, device: str, place: Namespace, address: str) -> None:
    """Link a namespace to a new device of the node."""
    ends = (device, "netns", node.path.name, "type", "veth", "peer", "eth0", "netns", place.path.name)
    subprocess.run(["ip", "link", "add", *ends], check=True, capture_output=True)
    place.run("ip", "address", "add", f"{address}/24", "dev", "eth0")
    place.run("ip", "link", "set", "eth0", "up")

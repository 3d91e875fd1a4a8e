"""A node with an engine and three sandboxes in a network namespace, and its surroundings in another."""

import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from shared.db.database import Database
from shared.models import Sandbox
from shared.settings import Settings
from shared.users import settings_store
from tests.factories import NODE_ID, VAULT, make_sandbox, make_spec, make_user
from tests.services.engine import TINY_IMAGE
from tests.services.namespaces import Namespace, Target, running_namespace
from tests.services.private_engine import PrivateEngine, running_engine_in
from worker.engine.disk_engine import DiskEngine
from worker.engine.docker_engine import INSTALLATION_LABEL, SANDBOX_LABEL
from worker.engine.protocol import ContainerRequest, ContainerStatus
from worker.network.addresses import make_bridge
from worker.network.firewall import LocalFirewall
from worker.network.isolation import IsolationContext, NetworkIsolation
from worker.network.proxy import EgressProxy
from worker.sandboxes.container_spec import CONFIG_ENV, CONFIG_PATH, container_name

NETWORK = IPv4Network("10.99.0.0/24")
NODE, NODE_ON_LAN, LAN = "10.99.0.1", "192.168.77.1", "192.168.77.2"
PUBLIC, METADATA, SHARED, OTHER_LAN = "8.8.8.8", "169.254.169.254", "100.64.9.9", "10.50.0.5"
# The address of Azure's metadata service, which is in a public range.
AZURE = "168.63.129.16"
AROUND = (PUBLIC, METADATA, AZURE, SHARED, OTHER_LAN)
EGRESS_PORT = 3003
SERVICE, OTHER, WEB, MODEL, DNS, AGENT = 3000, 2222, 80, 8001, 53, 8000
OPEN, CLOSED, LISTED = "open:1", "closed:1", "listed:1"
# The targets of probes, by name.
TARGETS: dict[str, Target] = {
    "the service": ("tcp", NODE, SERVICE),
    "another port of the node": ("tcp", NODE, OTHER),
    "a datagram to the node": ("udp", NODE, OTHER),
    "the service at the node's LAN address": ("tcp", NODE_ON_LAN, SERVICE),
    "another port at the node's LAN address": ("tcp", NODE_ON_LAN, OTHER),
    "the LAN": ("tcp", LAN, WEB),
    "another private network": ("tcp", OTHER_LAN, WEB),
    "the provider's shared network": ("tcp", SHARED, WEB),
    "metadata": ("tcp", METADATA, WEB),
    "metadata at an address like a public one": ("tcp", AZURE, WEB),
    "the model server": ("tcp", LAN, MODEL),
    "the resolver": ("udp", LAN, DNS),
    "the resolver by TCP": ("tcp", LAN, DNS),
    "a public address": ("tcp", PUBLIC, WEB),
    "a public resolver": ("udp", PUBLIC, DNS),
}


@dataclass(frozen=True)
class NetworkTestbed:
    """The node, its surroundings, its isolation, and its sandboxes by their specs."""

    node: Namespace
    lan: Namespace
    engine: PrivateEngine
    client: DiskEngine
    database: Database
    isolation: NetworkIsolation
    sandboxes: dict[str, Sandbox]

    def observe(self, spec: str) -> ContainerStatus:
        """The state of a sandbox's container."""
        return self.client.observe(container_name(self.sandboxes[spec].id))

    def address(self, spec: str) -> str:
        """The address of a sandbox."""
        [address] = self.observe(spec).networks.values()
        return address

    def reached(self, spec: str) -> set[str]:
        """The names of the targets that a sandbox reaches, including its neighbours."""
        others = {
            f"its neighbour {other}": ("tcp", self.address(other), AGENT) for other in self.sandboxes if other != spec
        }
        return probe(self.inside(spec), TARGETS | others)

    def reached_by_each(self) -> dict[str, set[str]]:
        """The targets that each sandbox reaches; probes run concurrently, because a refused one takes seconds."""
        with ThreadPoolExecutor() as threads:
            return dict(zip(self.sandboxes, threads.map(self.reached, self.sandboxes), strict=True))

    def inside(self, spec: str) -> Namespace:
        """The namespace of a sandbox's container. Probes in it run as root, with more privileges than an agent."""
        name = container_name(self.sandboxes[spec].id)
        pid = self.engine.docker("inspect", "--format", "{{.State.Pid}}", name).strip()
        return Namespace(Path(f"/proc/{pid}/ns/net"))

    def reached_from(self, place: Namespace) -> set[str]:
        """The agent servers that a namespace reaches, and the service if it is reached at its address for sandboxes."""
        servers: dict[str, Target] = {spec: ("tcp", self.address(spec), AGENT) for spec in self.sandboxes}
        return probe(place, servers | {"the service": TARGETS["the service"]})


def probe(place: Namespace, targets: dict[str, Target]) -> set[str]:
    """The names of the targets that respond."""
    found = place.probe(list(targets.values()))
    return {name for name, responses in zip(targets, found, strict=True) if responses}


@dataclass(frozen=True)
class Machines:
    """A node with an engine, and its surroundings."""

    node: Namespace
    lan: Namespace
    engine: PrivateEngine


def open_machines(stack: ExitStack, directory: Path) -> Machines:
    """Start the machines, until the stack is closed."""
    node, lan = stack.enter_context(running_namespace()), stack.enter_context(running_namespace())
    _connect(node, lan)
    stack.enter_context(node.listening(directory / "node.log", SERVICE, OTHER))
    stack.enter_context(lan.listening(directory / "lan.log", WEB, MODEL, DNS, addresses=[LAN, *AROUND]))
    return Machines(node, lan, stack.enter_context(running_engine_in(node, [TINY_IMAGE])))


def open_testbed(stack: ExitStack, machines: Machines, database_url: str) -> NetworkTestbed:
    """Start the testbed on these machines, until the stack is closed."""
    node, lan, engine = machines.node, machines.lan, machines.engine
    stack.callback(engine.clear)
    client, database = DiskEngine(engine.host, "testbed"), Database(database_url)
    stack.callback(client.close)
    stack.callback(database.close)
    isolation = make_isolation(node, client, database, LAN)
    sandboxes = {spec: _make_sandbox(database, spec, egress) for spec, egress in EGRESS.items()}
    client.ensure_network(isolation._context.network)
    for sandbox in sandboxes.values():
        start_sandbox(client, isolation, sandbox)
    return NetworkTestbed(node, lan, engine, client, database, isolation, sandboxes)


EGRESS = {OPEN: "open", CLOSED: "none", LISTED: "10.50.0.0/16"}


class IsolationFromOutside(NetworkIsolation):
    """The isolation of a machine other than the one that runs this code, whose own routes do not matter."""

    def find_route_problem(self) -> str | None:
        return None


def make_isolation(node: Namespace, client: DiskEngine, database: Database, resolvers: str) -> NetworkIsolation:
    """Create the isolation as the node's worker does."""
    shared = Settings(sandbox_addresses=NETWORK)
    bridge = make_bridge(shared, "testbed", NODE_ID)
    firewall = LocalFirewall(bridge, node.command)
    proxy = EgressProxy(shared.egress_folder, NODE, EGRESS_PORT, firewall)
    return IsolationFromOutside(
        IsolationContext(
            shared, NODE_ID, resolvers, SERVICE, "testbed", database, VAULT, client, firewall, bridge, proxy
        )
    )


def name_model(testbed: NetworkTestbed, spec: str, address: str) -> None:
    """Name a model server in the settings of the sandbox's owner."""
    with testbed.database.transaction() as session:
        owner = testbed.sandboxes[spec].owner_id or ""
        settings_store.change(session, VAULT, owner, {"llm_base_url": f"http://{address}/v1"})


def _make_sandbox(database: Database, spec: str, egress: str) -> Sandbox:
    make_spec(database, spec, egress=egress)
    return make_sandbox(database, make_user(database, f"owner of {spec}"), spec_id=spec)


def start_sandbox(client: DiskEngine, isolation: NetworkIsolation, sandbox: Sandbox) -> None:
    """Create and start the container of a sandbox."""
    name = container_name(sandbox.id)
    request = ContainerRequest(
        name=name,
        image=TINY_IMAGE,
        command=["--host", "0.0.0.0", "--port", str(AGENT)],
        env={CONFIG_ENV: CONFIG_PATH},
        labels={INSTALLATION_LABEL: "testbed", SANDBOX_LABEL: sandbox.id},
        working_dir="/workspace",
        memory_bytes=64 * 1024**2,
        cpus=1.0,
        pids=64,
        capabilities=[],
        runtime=None,
        network=isolation.endpoint,
    )
    client.create(request)
    client.put_file(name, CONFIG_PATH, b'{"session_api_keys": ["k"], "secret_key": "s"}')
    client.start(name)


def _connect(node: Namespace, lan: Namespace) -> None:
    """Link the node to its surroundings."""
    link = [
        "ip",
        "link",
        "add",
        "lan0",
        "netns",
        node.path.name,
        "type",
        "veth",
        "peer",
        "lan0",
        "netns",
        lan.path.name,
    ]
    subprocess.run(link, check=True, capture_output=True)
    for place, address in ((node, NODE_ON_LAN), (lan, LAN)):
        _ip(place, "address", "add", f"{address}/24", "dev", "lan0")
        _ip(place, "link", "set", "lan0", "up")
    for address in AROUND:
        _ip(lan, "address", "add", f"{address}/32", "dev", "lo")
    _ip(node, "route", "add", "default", "via", LAN)
    _ip(lan, "route", "add", str(NETWORK), "via", NODE_ON_LAN)


def _ip(place: Namespace, *arguments: str) -> Sequence[str]:
    return place.run("ip", *arguments).split()

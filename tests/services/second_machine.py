"""A second machine for a deployment: a network namespace with an engine, a worker and a door, with default settings.

Its only link leads to this machine, with the API and the model server. So the API reaches the sandboxes there only by
the door. The link's addresses are private; sandboxes reach them only if they are configured as model servers.
"""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlmodel import select

from shared.models import Node, Sandbox
from shared.nodes import registry
from shared.states import NodeStatus
from tests.services.deployment import Deployment
from tests.services.forks import Fork
from tests.services.namespaces import Namespace, running_namespace
from tests.services.private_engine import PrivateEngine, running_engine_in
from tests.services.slots import Slot, is_unused, taken_slot
from tests.waiting import eventually

NODE = "second"
LINK = "awlink"
# More than the files of the real image and of a test.
DISK_BYTES = 1024**3


@dataclass(frozen=True)
class SecondMachine:
    """A second machine.

    Args:
        host: the address of this machine on the link.
        address: the address of the second machine on the link.
    """

    namespace: Namespace
    engine: PrivateEngine
    host: str
    address: str

    def open_api(self, service: Deployment) -> None:
        """Make the API, which is not started yet, listen on the link too."""
        service.environment["AW_HOST"] = "0.0.0.0"

    def join(self, service: Deployment, *, sandboxes: str = "", model_server: str = "") -> None:
        """Start the door and the worker; once they are ready, cordon the nodes of this machine.

        Args:
            service: the running service.
            sandboxes: the sandboxes' network, as a CIDR; empty: the default.
            model_server: `address:port` that sandboxes may reach.
        """
        settings = {
            "AW_NODE": NODE,
            "AW_DOCKER_HOST": self.engine.host,
            "AW_NODE_ADDRESS": self.address,
            "AW_SANDBOX_API_URL": f"http://{self.host}:{service.port}",
            "AW_NETWORK_ISOLATION": "on",
            "AW_SANDBOX_ADDRESSES": sandboxes,
            "AW_SANDBOX_DNS": "none",
            "AW_SANDBOX_DISK_BYTES": str(DISK_BYTES),
            "AW_MODEL_SERVERS": model_server,
        }
        environment = {name: value for name, value in (service.environment | settings).items() if value}
        logs = Path(environment["AW_VAR_DIR"])
        for name, module in (("door-second", "deploy.door"), ("worker-second", "worker")):
            service.adopt(name, Fork([module], environment, logs / f"{name}.log", namespace=self.namespace.path))
        eventually(lambda: is_open(service), deadline_seconds=120)
        with service.database.transaction() as session:
            for node in service.engines:
                registry.cordon(session, node)

    def assert_used(self, service: Deployment) -> None:
        """Assert that all sandboxes were on this node, and reached only by its door."""
        with service.database.reading() as session:
            rows = session.exec(select(Sandbox)).all()
        assert {row.node_id for row in rows} == {NODE}
        urls = {url["url"].rpartition(":")[0] for row in rows for url in row.exposed_urls or []}
        assert urls <= {f"http://{self.address}"}, urls


def is_open(service: Deployment) -> bool:
    """Whether the second node accepts sandboxes."""
    with service.database.reading() as session:
        node = session.get(Node, NODE)
        return node is not None and node.status == NodeStatus.READY and node.closed_reason is None


@contextmanager
def running_second_machine(images: Sequence[str]) -> Iterator[SecondMachine]:
    """Run a second machine whose engine has these images, for the length of the block."""
    with (
        taken_slot(lambda slot: is_unused(slot.network)) as slot,
        running_namespace() as namespace,
        _linked(namespace, slot),
        running_engine_in(namespace, images, makes_rules=True) as engine,
    ):
        yield SecondMachine(namespace, engine, str(slot.network[1]), str(slot.network[2]))


@contextmanager
def _linked(namespace: Namespace, slot: Slot) -> Iterator[None]:
    link, length = f"{LINK}{slot.number}", slot.network.prefixlen
    peer = ("peer", "name", "eth0", "netns", namespace.path.name)
    _run("ip", "link", "add", link, "type", "veth", *peer)
    _run("ip", "address", "add", f"{slot.network[1]}/{length}", "dev", link)
    _run("ip", "link", "set", link, "up")
    namespace.run("ip", "address", "add", f"{slot.network[2]}/{length}", "dev", "eth0")
    namespace.run("ip", "link", "set", "eth0", "up")
    namespace.run("ip", "route", "add", "default", "via", str(slot.network[1]))
    try:
        yield
    finally:
        _run("ip", "link", "delete", link)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)

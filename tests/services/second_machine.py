"""A second machine for a deployment: a network namespace with an engine, a worker and a door, as they are by default.

One link leads to this machine, where the API and the model server are, and nowhere else: the API reaches the sandboxes
there by the door alone. The link's addresses are private ones, which sandboxes reach only as model servers.
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
from tests.services.directories import REPOSITORY
from tests.services.namespaces import Namespace, running_namespace
from tests.services.private_engine import PrivateEngine, running_engine_in
from tests.services.processes import start_module
from tests.services.slots import Slot, is_unused, taken_slot
from tests.waiting import eventually

NODE = "second"
LINK = "awlink"
# More than the real image's files and a test's.
DISK_BYTES = 1024**3


@dataclass(frozen=True)
class SecondMachine:
    """The machine.

    Args:
        host: the address at which it reaches this machine.
        address: its own on the link.
    """

    namespace: Namespace
    engine: PrivateEngine
    host: str
    address: str

    def open_api(self, service: Deployment) -> None:
        """Let the API, which is not started yet, listen on the link, too."""
        service.environment["AW_HOST"] = "0.0.0.0"

    def join(self, service: Deployment, *, sandboxes: str = "", model_server: str = "") -> None:
        """Start door and worker there; once they are ready, cordon the nodes of this machine.

        Args:
            service: running.
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
            "PYTHONPATH": str(REPOSITORY),  # `deploy` is not installed
        }
        environment = {name: value for name, value in (service.environment | settings).items() if value}
        logs = Path(environment["AW_VAR_DIR"])
        for name, module in (("door-second", "deploy.door"), ("worker-second", "worker")):
            process = start_module([module], environment, logs / f"{name}.log", launcher=self.namespace.command)
            service.adopt(name, process)
        eventually(lambda: is_open(service), deadline_seconds=120)
        with service.database.transaction() as session:
            for node in service.engines:
                registry.cordon(session, node)

    def assert_used(self, service: Deployment) -> None:
        """Check that all sandboxes were there, reached by its door alone."""
        with service.database.reading() as session:
            rows = session.exec(select(Sandbox)).all()
        assert {row.node_id for row in rows} == {NODE}
        urls = {url["url"].rpartition(":")[0] for row in rows for url in row.exposed_urls or []}
        assert urls <= {f"http://{self.address}"}, urls


def is_open(service: Deployment) -> bool:
    """Whether the second node takes sandboxes."""
    with service.database.reading() as session:
        node = session.get(Node, NODE)
        return node is not None and node.status == NodeStatus.READY and node.closed_reason is None


@contextmanager
def running_second_machine(images: Sequence[str]) -> Iterator[SecondMachine]:
    """The machine with an engine that has these images, for the length of the block."""
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

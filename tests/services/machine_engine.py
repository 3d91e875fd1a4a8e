"""The machine's own engine for deployments: several test runs may use it at once, each under labels of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from deploy.demo.network import bridge_address
from tests.services.engine import ENGINE, docker_engine
from tests.services.slots import taken_slot
from worker.engine.docker_engine import DockerEngine


@dataclass(frozen=True)
class MachineEngine:
    """The machine's engine, with an address of its own for the door beside it.

    Args:
        client: the product's client of it.
    """

    host: str
    gateway: str
    address: str
    client: DockerEngine
    network: str = ""


@contextmanager
def machine_engine(installation: str) -> Iterator[MachineEngine]:
    """The machine's engine; what has the installation's label is removed at the end of the block."""
    with docker_engine(installation) as client, taken_slot() as slot:
        yield MachineEngine(ENGINE, bridge_address(), slot.address, client)

"""The machine's engine for deployments. Concurrent test runs share it, each with its own labels."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from deploy.demo.network import bridge_address
from tests.services.engine import docker_engine
from tests.services.engine_address import ENGINE
from tests.services.slots import taken_slot
from worker.engine.docker_engine import DockerEngine


@dataclass(frozen=True)
class MachineEngine:
    """The machine's engine, with a separate address for the door beside it.

    Args:
        client: the product's client of the engine.
    """

    host: str
    gateway: str
    address: str
    client: DockerEngine
    network: str = ""


@contextmanager
def machine_engine(installation: str) -> Iterator[MachineEngine]:
    """The machine's engine; everything with the installation's label is removed after the block."""
    with docker_engine(installation) as client, taken_slot() as slot:
        yield MachineEngine(ENGINE, bridge_address(), slot.address, client)

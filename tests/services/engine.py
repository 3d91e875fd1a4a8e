"""The machine's engine for tests, and the cleanup after them."""

import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache

from shared.ids import new_id
from tests.services import leases
from tests.services.directories import MEMORY, ROOT
from tests.services.engine_address import ENGINE
from tests.services.namespaces import NAMESPACES
from tests.services.networks import remove_networks
from worker.engine.disk_engine import DiskEngine
from worker.engine.docker_engine import INSTALLATION_LABEL

SANDBOX_IMAGE = "agent-workspace/sandbox:1.58.2"
TINY_IMAGE = "agent-workspace/tiny:9"
# The prefix of tests' installations, before the lease of the process, by which a sweep finds those of killed processes.
TEST_INSTALLATION = "test-"


@contextmanager
def docker_engine(installation: str) -> Iterator[DiskEngine]:
    """The machine's engine; everything with the installation's label is removed after the block."""
    engine = DiskEngine(ENGINE, installation)
    _sweep_once()
    try:
        yield engine
    finally:
        _sweep(engine, installation)
        engine.close()


def name_installation() -> str:
    """A new name for an installation of this process."""
    return f"{TEST_INSTALLATION}{leases.own_lease()}-{new_id()[:8]}"


def sweep_the_dead() -> None:
    """Remove containers and volumes of killed processes, and old leases of which nothing is left."""
    installations = _listed("ps", "--all") | _listed("volume", "ls") | _listed("network", "ls")
    for installation in installations:
        lease = installation.removeprefix(TEST_INSTALLATION).split("-")[0]
        if installation.startswith(TEST_INSTALLATION) and leases.has_ended(lease):
            with closing(DiskEngine(ENGINE, installation)) as engine:
                _sweep(engine, installation)
    # What was swept counts as left until the next sweep: Docker may have kept a network.
    leases.remove_old([*installations, *_named_places()])


def _sweep(engine: DiskEngine, installation: str) -> None:
    names = {item.name for item in engine.list_containers(installation)} | set(engine.list_volumes(installation))
    for name in names:
        engine.remove(name)
    remove_networks(installation)


@cache
def _sweep_once() -> None:
    """Sweep once in a process, because the listing takes 50 ms of CPU time."""
    sweep_the_dead()


def _named_places() -> Iterator[str]:
    """The names of directories and namespaces, some of them with leases."""
    for root in (ROOT, MEMORY, NAMESPACES):
        with suppress(FileNotFoundError):
            yield from (place.name for place in root.iterdir())


def _listed(*what: str) -> set[str]:
    """The installations that have containers or volumes; a volume may be left without its container."""
    command = ["docker", *what, "--format", f'{{{{.Label "{INSTALLATION_LABEL}"}}}}']
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())

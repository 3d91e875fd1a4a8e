"""Machines connected by virtual cables: each is a network namespace with a host name and a Docker Engine."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.services.directories import short_directory
from tests.services.linked_images import link_images
from tests.services.namespaces import Namespace, running_namespace
from tests.services.power import cut_power, unmount
from tests.services.private_engine import PrivateEngine
from tests.services.slots import taken_slot
from tests.waiting import eventually

NETWORK = "10.77.0"
CABLE = "cable"
# No registry is reachable, and without this setting a Swarm would try to resolve each image there until a timeout.
PREFER_OFFLINE = "DOCKER_SERVICE_PREFER_OFFLINE_IMAGE=1"
CLONE_NEWNET = 0x40000000
Result = TypeVar("Result")


class NamedNamespace(Namespace):
    """A namespace in which programs see a separate host name."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path)
        self.name = name

    @property
    def command(self) -> list[str]:
        """The prefix of a command that runs in the namespace."""
        return [*super().command, "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', self.name]

    def call(self, act: Callable[[], Result]) -> Result:
        """Call `act` in a thread in the namespace, which threads that it starts inherit; return the result."""
        with ThreadPoolExecutor(1, initializer=self._enter) as thread:
            return thread.submit(act).result()

    def kill_all(self) -> bool:
        """Kill all processes in the namespace; return whether there were none."""
        found = subprocess.run(["ip", "netns", "pids", self.path.name], check=True, capture_output=True, text=True)
        for pid in map(int, found.stdout.split()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not found.stdout.split()

    def _enter(self) -> None:
        with self.path.open() as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")


class Engine(PrivateEngine):
    """An engine that writes firewall rules in its namespace, as an installed one does."""

    # The folder that the engine sees as /run, if the other processes of its machine see it too.
    run: Path | None = None

    def _command(self) -> Sequence[str]:
        own = [word for word in super()._command() if word != "--iptables=false"]
        words = ["env", PREFER_OFFLINE, *own]
        if self.run is None:
            return words
        mounts = ["unshare", "--mount", "sh", "-c", 'mount --rbind "$0" /run && exec "$@"', str(self.run)]
        at = words.index("dockerd")
        return [*words[:at], *mounts, *words[at:]]


@dataclass(frozen=True)
class Machine:
    """A machine of the cluster.

    Args:
        namespace: the namespace of its programs.
        engine: its engine.
        address: the address at which the other machines reach it.
        folder: its files.
    """

    namespace: NamedNamespace
    engine: Engine
    address: str
    folder: Path

    @property
    def socket(self) -> str:
        """The engine's socket."""
        return self.engine.host.removeprefix("unix://")

    def lose_power(self) -> None:
        """Kill all processes at once: the service's, the engine's, and those in containers."""
        self.namespace.kill_all()
        cut_power(self.engine)
        eventually(self.namespace.kill_all)
        unmount(self.engine.data.parent)


@contextmanager
def running_machines(images: Sequence[str]) -> Iterator[tuple[Machine, Machine]]:
    """Start two machines whose engines have these images of this machine."""
    with running_machine("first", 1, images) as first, running_machine("second", 2, images, first) as second:
        yield first, second


@contextmanager
def running_machine(
    name: str, number: int, images: Sequence[str], neighbour: Machine | None = None, run: Path | None = None
) -> Iterator[Machine]:
    """Start a machine, with a cable to a neighbour if there is one.

    Args:
        run: the folder that its engine sees as /run; by default this machine's.
    """
    with running_namespace() as space:
        namespace, address = NamedNamespace(space.path, name), f"{NETWORK}.{number}"
        _plug_in(namespace, f"to-{name}", (neighbour.namespace if neighbour else namespace), address)
        with short_directory("cluster") as folder, short_directory("engine") as directory, taken_slot() as slot:
            engine = Engine(directory, slot, namespace)
            engine.run = run
            assert link_images(engine.data, images)
            try:
                engine.start()
                yield Machine(namespace, engine, address, folder)
                if engine.is_running:
                    engine.clear()
            finally:
                engine.stop()
                engine.remove_disks()


def _plug_in(space: Namespace, far_end: str, neighbour: Namespace, address: str) -> None:
    """Give a machine its address on a cable. The first machine, which has no neighbour, gets both ends."""
    ends = f"{CABLE} netns {space.path.name} type veth peer name {far_end} netns {neighbour.path.name}"
    subprocess.run(["ip", "link", "add", *ends.split()], check=True, capture_output=True)
    space.run("ip", "address", "add", f"{address}/24", "dev", CABLE)
    space.run("ip", "link", "set", CABLE, "up")
    neighbour.run("ip", "link", "set", far_end, "up")
    if neighbour.path != space.path:
        neighbour.run("ip", "route", "add", f"{address}/32", "dev", far_end)
    # To choose an unused IPv4 network, Docker needs a default route.
    space.run("ip", "route", "add", "default", "dev", CABLE)

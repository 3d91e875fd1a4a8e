"""Two machines on one cable: each a network namespace with a host name and a Docker Engine."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.services.borrowed_images import borrow_images
from tests.services.directories import short_directory
from tests.services.namespaces import Namespace, running_namespace
from tests.services.private_engine import PrivateEngine
from tests.services.slots import taken_slot

NETWORK = "10.77.0"
CABLE = "cable"


class NamedNamespace(Namespace):
    """A namespace in which programs see a host name of their own."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path)
        self.name = name

    @property
    def command(self) -> list[str]:
        """The beginning of a command that runs in it."""
        return [*super().command, "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', self.name]


class Engine(PrivateEngine):
    """An engine that writes the rules of its namespace, as one that is installed does."""

    def _command(self) -> Sequence[str]:
        return [word for word in super()._command() if word != "--iptables=false"]


@dataclass(frozen=True)
class Machine:
    """A machine of the cluster.

    Args:
        namespace: where its programs run.
        engine: its engine.
        address: by which the other one reaches it.
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


@contextmanager
def running_machines(images: Sequence[str]) -> Iterator[tuple[Machine, Machine]]:
    """The two machines; their engines have these images of this one."""
    with ExitStack() as stack:
        spaces = [NamedNamespace(stack.enter_context(running_namespace()).path, name) for name in ("first", "second")]
        _connect(*spaces)
        first, second = (
            stack.enter_context(_running_machine(space, f"{NETWORK}.{number}", images))
            for number, space in enumerate(spaces, 1)
        )
        yield first, second


@contextmanager
def _running_machine(namespace: NamedNamespace, address: str, images: Sequence[str]) -> Iterator[Machine]:
    with short_directory("cluster") as folder, short_directory("engine") as directory, taken_slot() as slot:
        engine = Engine(directory, slot, namespace)
        assert borrow_images(engine.data, images)
        try:
            engine.start()
            yield Machine(namespace, engine, address, folder)
            engine.clear()
        finally:
            engine.stop()
            engine.remove_disks()


def _connect(first: Namespace, second: Namespace) -> None:
    ends = f"{CABLE} netns {first.path.name} type veth peer name {CABLE} netns {second.path.name}"
    subprocess.run(["ip", "link", "add", *ends.split()], check=True, capture_output=True)
    for number, end in enumerate((first, second), 1):
        end.run("ip", "address", "add", f"{NETWORK}.{number}/24", "dev", CABLE)
        end.run("ip", "link", "set", CABLE, "up")
        # Docker chooses an IPv4 network that no route leads to, and asks for a default one.
        end.run("ip", "route", "add", "default", "dev", CABLE)

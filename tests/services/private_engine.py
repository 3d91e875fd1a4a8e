"""Private Docker Engines of the tests: stopping one affects no other process, and none outlives the tests."""

import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.services import processes
from tests.services.data_disk import data_disk
from tests.services.directories import ROOT, short_directory
from tests.services.engine_processes import kill_half_made_shims
from tests.services.engine_socket import EngineSocket
from tests.services.linked_images import link_images
from tests.services.namespaces import Namespace
from tests.services.networks import NAMES, remove_abandoned_networks, remove_rules
from tests.services.slots import BRIDGE_PREFIX, Slot, is_unused, take_slot, taken_slot
from tests.waiting import eventually
from worker.engine.disk_images import DEVICES, DiskImages

LINKS = Path("/sys/class/net")
BLOCK = bytes(4096)
# The engine runs its own program for each step of a container's start. Each run takes 30 ms of CPU time if it collects
# garbage rarely, and 40 ms otherwise.
GO = {"GOGC": "400"}
# The timeout of a command; one that waits for a lock of the engine might wait forever.
COMMAND_SECONDS = 120


class PrivateEngine:
    """A dockerd with its own socket, data and images, and with the bridge, network and addresses of its slot."""

    def __init__(
        self, directory: Path, slot: Slot, namespace: Namespace | None = None, *, makes_rules: bool = False
    ) -> None:
        self._directory = directory
        self._slot = slot
        self._namespace = namespace
        self._makes_rules = makes_rules
        self._ballast = self.data / "ballast"
        self._daemon: subprocess.Popen[bytes] | None = None
        self.host = f"unix://{directory}/docker.sock"
        # The address at which sandboxes reach this machine.
        self.gateway = slot.gateway
        # The address at which the door beside the engine listens.
        self.address = slot.address
        self.network = str(slot.network)

    @property
    def data(self) -> Path:
        """The directory of images, containers and volumes."""
        return self._directory / "data"

    @property
    def is_running(self) -> bool:
        """Whether the engine was started, and neither stopped nor killed since."""
        return self._daemon is not None

    def start(self) -> None:
        """Start the engine, unless it runs, and wait until it responds."""
        if self._daemon is not None:
            return
        # The containerd of a killed daemon may be a zombie, for which the next daemon would wait.
        for stale in ("docker.pid", "docker.sock", "exec/containerd/containerd.pid"):
            (self._directory / stale).unlink(missing_ok=True)
        kill_half_made_shims(self._directory)
        with _alone():
            self._daemon = processes.start(self._command(), self._directory / "log", environment=os.environ | GO)
            eventually(self._responds)

    def stop(self) -> None:
        """Shut down the engine; its containers end with it."""
        if self._daemon is not None:
            self._daemon.send_signal(signal.SIGTERM)
            self._daemon.wait(60)
            self._daemon = None

    def kill(self) -> None:
        """Kill the daemon. Its containers run on until the daemon is restarted."""
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon.wait()
            self._daemon = None

    def stall(self) -> None:
        """Suspend the daemon until `wake`; its connections stay open without responses."""
        if self._daemon is not None:
            self._daemon.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """End a stall."""
        if self._daemon is not None:
            self._daemon.send_signal(signal.SIGCONT)

    def fill_disk(self) -> None:
        """Fill the engine's own disk, until `free_disk`."""
        with suppress(OSError), self._ballast.open("wb", buffering=0) as file:
            while True:
                file.write(BLOCK)

    def free_disk(self) -> None:
        """Free the disk."""
        self._ballast.unlink(missing_ok=True)

    def load(self, image: str) -> None:
        """Copy an image from the machine's engine."""
        save = subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE)
        self.docker("load", stdin=save.stdout)
        if save.stdout is not None:
            save.stdout.close()
        assert save.wait() == 0

    def docker(self, *arguments: str, stdin: object = None) -> str:
        """Run a docker command on this engine; return its output.

        Raises:
            AssertionError: the command failed, with its output in the message, or took longer than `COMMAND_SECONDS`.
        """
        command = ["docker", "--host", self.host, *arguments]
        try:
            done = subprocess.run(  # type: ignore[call-overload]
                command, stdin=stdin, capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"docker {arguments[0]} did not end: {error}") from None
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def containers(self) -> list[str]:
        """The names of all containers, by the socket, because tests poll and a command takes 18 ms of CPU time."""
        found = EngineSocket(self.host).read("/containers/json?all=1")
        # A container that is being removed may have no name.
        return [name.removeprefix("/") for container in found for name in container["Names"] or ()]

    def volumes(self) -> list[str]:
        """The names of all volumes."""
        return sorted(volume["Name"] for volume in EngineSocket(self.host).read("/volumes")["Volumes"] or ())

    def clear(self) -> None:
        """Remove all containers, volumes and networks of sandboxes."""
        # Use the socket, because five docker commands after each test would take 70 ms of CPU time.
        engine = EngineSocket(self.host)
        for container in engine.read("/containers/json?all=1"):
            engine.remove(f"/containers/{container['Id']}?force=1&v=1")
        for volume in engine.read("/volumes")["Volumes"] or ():
            engine.remove(f"/volumes/{volume['Name']}?force=1", unless=b"volume has active mounts")
        self.remove_disks()
        for network in engine.read("/networks"):
            if network["Name"].startswith(NAMES):
                engine.remove(f"/networks/{network['Id']}")
                remove_rules(network["Name"], self._namespace.command if self._namespace else ())

    def remove_disks(self) -> None:
        """Remove the disk images of sandboxes, whose loop devices would outlive the engine's directory."""
        for folder in (self.data / "agent-workspace").glob("*"):
            images = DiskImages(self.data, folder.name)
            for name in images.names():
                images.remove(name)

    def detach_disks(self) -> None:
        """Detach the loop devices of disk images and keep the images, as a reboot does."""
        for image in (self.data / "agent-workspace").glob("*/*.img"):
            detach_disk(image)

    def _command(self) -> Sequence[str]:
        return [
            *(self._namespace.command if self._namespace else ()),
            "dockerd",
            f"--host={self.host}",
            f"--data-root={self.data}",
            f"--exec-root={self._directory}/exec",
            f"--pidfile={self._directory}/docker.pid",
            *self._bridge_options(),
            # All engines share the machine's firewall chains, and a starting engine would rewrite them. The userland
            # proxy of each port is enough for the tests.
            f"--iptables={str(self._makes_rules).lower()}",
            # Refuse lookups: without firewall rules no name server is reachable, and each would take ten seconds.
            "--dns=127.0.0.1",
        ]

    def _bridge_options(self) -> Sequence[str]:
        if self._namespace:
            return ["--bridge=none"]
        return [f"--bridge={self._slot.bridge}", f"--fixed-cidr={self._slot.network}"]

    def _responds(self) -> bool:
        if self._daemon is not None and self._daemon.poll() is not None:
            raise RuntimeError(f"the engine did not start: {(self._directory / 'log').read_text()[-2000:]}")
        command = ["docker", "--host", self.host, "version"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def detach_disk(image: Path) -> bool:
    """Detach an image's loop device and remove the link to it; return False if there was none."""
    found = subprocess.run(
        ["losetup", "--noheadings", "--output", "NAME", "--associated", image], check=True, capture_output=True
    )
    for device in found.stdout.decode().split():
        subprocess.run(["losetup", "--detach", device], check=True, capture_output=True)
    (DEVICES / image.stem).unlink(missing_ok=True)
    return bool(found.stdout)


@contextmanager
def running_private_engine(
    images: Sequence[str], *, disk_bytes: int = 0, in_memory: bool = True
) -> Iterator[PrivateEngine]:
    """Run an engine with these images, for the length of the block; the other arguments are those of its `data_disk`.

    Benchmarks keep its data on the machine's disk, where installations have it.
    """
    with (
        short_directory("engine") as directory,
        _slot_with_bridge() as slot,
        data_disk(directory / "data", disk_bytes, in_memory=in_memory),
    ):
        engine = PrivateEngine(directory, slot)
        linked = bool(images) and link_images(engine.data, images)
        try:
            engine.start()
            for image in () if linked else images:
                engine.load(image)
            yield engine
            engine.clear()
        finally:
            engine.stop()
            engine.remove_disks()


@contextmanager
def running_engine_in(
    namespace: Namespace, images: Sequence[str], *, makes_rules: bool = False
) -> Iterator[PrivateEngine]:
    """Run an engine in a network namespace, without its own bridge.

    Args:
        makes_rules: let the engine write firewall rules in the namespace, as engines do by default. Sandboxes' packets
            then leave it with the address of the machine.
    """
    with short_directory("engine") as directory, taken_slot() as slot, data_disk(directory / "data"):
        engine = PrivateEngine(directory, slot, namespace, makes_rules=makes_rules)
        assert link_images(engine.data, images)
        try:
            engine.start()
            yield engine
            engine.clear()
        finally:
            engine.stop()
            engine.remove_disks()


@contextmanager
def _alone() -> Iterator[None]:
    """Start one engine at a time on this machine, because a starting daemon rebuilds the shared firewall chains."""
    with (ROOT / "aw-engine.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _slot_with_bridge() -> Iterator[Slot]:
    """Take a slot whose network is unused, and create its bridge with the gateway's address."""
    _sweep_bridges()
    remove_abandoned_networks()
    with taken_slot(lambda slot: is_unused(slot.network)) as slot:
        # Without a fixed hardware address, a bridge takes the lowest of its ports', which changes with the containers.
        # Other containers would then send packets to the old address until their ARP entries expire, half a minute
        # later.
        for command in (
            ["ip", "link", "add", slot.bridge, "address", slot.hardware_address, "type", "bridge"],
            ["ip", "address", "add", f"{slot.gateway}/{slot.network.prefixlen}", "dev", slot.bridge],
            ["ip", "link", "set", slot.bridge, "up"],
        ):
            subprocess.run(command, check=True, capture_output=True)
        try:
            yield slot
        finally:
            _remove_bridge(slot.bridge)


def _sweep_bridges() -> None:
    """Remove the bridges of slots that no process holds."""
    for link in LINKS.glob(f"{BRIDGE_PREFIX}*"):
        number = link.name.removeprefix(BRIDGE_PREFIX)
        if number.isdigit() and (slot := take_slot(int(number))):
            _remove_bridge(slot.bridge, check=False)
            slot.release()


def _remove_bridge(name: str, *, check: bool = True) -> None:
    subprocess.run(["ip", "link", "delete", name], check=check, capture_output=True)

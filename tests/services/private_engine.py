"""Private Docker Engines of the tests: stopping one affects no other process, and none outlives the tests."""

import fcntl
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.services import processes
from tests.services.borrowed_images import borrow_images
from tests.services.directories import ROOT, short_directory
from tests.services.engine_processes import kill_half_made_shims
from tests.services.engine_socket import EngineSocket
from tests.services.namespaces import Namespace
from tests.services.networks import NAMES, remove_rules
from tests.services.slots import BRIDGE_PREFIX, Slot, is_unused, take_slot, taken_slot
from tests.waiting import eventually
from worker.engine.disk_images import DEVICES, DiskImages

LINKS = Path("/sys/class/net")
BLOCK = bytes(4096)
# The longest that a command may take; one that waits for an engine's lock would wait for ever.
COMMAND_SECONDS = 120


class PrivateEngine:
    """Another dockerd with its own socket, data, bridge and images; bridge, network and addresses are its slot's."""

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
        # Where sandboxes find this machine.
        self.gateway = slot.gateway
        # Where the door beside it listens.
        self.address = slot.address
        self.network = str(slot.network)

    @property
    def data(self) -> Path:
        """Where its images, containers and volumes are."""
        return self._directory / "data"

    @property
    def is_running(self) -> bool:
        """Whether it was started, and neither stopped nor killed since."""
        return self._daemon is not None

    def start(self) -> None:
        """Start it and wait until it answers; one that runs already is left alone."""
        if self._daemon is not None:
            return
        # A containerd that died with its daemon may be a zombie, and the next daemon would wait for it.
        for stale in ("docker.pid", "docker.sock", "exec/containerd/containerd.pid"):
            (self._directory / stale).unlink(missing_ok=True)
        kill_half_made_shims(self._directory)
        with _alone():
            self._daemon = processes.start(self._command(), self._directory / "log")
            eventually(self._answers)

    def stop(self) -> None:
        """Stop it in an orderly way; its containers end with it."""
        if self._daemon is not None:
            self._daemon.send_signal(signal.SIGTERM)
            self._daemon.wait(60)
            self._daemon = None

    def kill(self) -> None:
        """Let the daemon die in the middle of whatever it does; its containers don't notice until it is back."""
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon.wait()
            self._daemon = None

    def stall(self) -> None:
        """Let the daemon hold its connections and say nothing, until `wake`."""
        if self._daemon is not None:
            self._daemon.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """End a stall."""
        if self._daemon is not None:
            self._daemon.send_signal(signal.SIGCONT)

    def fill_disk(self) -> None:
        """Leave no room on its disk, until `free_disk`; only for one that has a disk of its own."""
        with suppress(OSError), self._ballast.open("wb", buffering=0) as file:
            while True:
                file.write(BLOCK)

    def free_disk(self) -> None:
        """Give the room back."""
        self._ballast.unlink(missing_ok=True)

    def load(self, image: str) -> None:
        """Bring an image over from the machine's own engine."""
        save = subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE)
        self.docker("load", stdin=save.stdout)
        if save.stdout is not None:
            save.stdout.close()
        assert save.wait() == 0

    def docker(self, *arguments: str, stdin: object = None) -> str:
        """The output of a docker command on this engine.

        Raises:
            AssertionError: it failed, with its words in the message, or took more than `COMMAND_SECONDS`.
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
        """The names of all its containers."""
        return self.docker("ps", "--all", "--format", "{{.Names}}").split()

    def volumes(self) -> list[str]:
        """The names of all its volumes."""
        return self.docker("volume", "ls", "--quiet").split()

    def clear(self) -> None:
        """Remove every container, volume and network of sandboxes."""
        # By the socket: five docker commands take 70 ms of processor time, after each test.
        engine = EngineSocket(self.host)
        for container in engine.read("/containers/json?all=1"):
            engine.remove(f"/containers/{container['Id']}?force=1&v=1")
        for volume in engine.read("/volumes")["Volumes"] or ():
            engine.remove(f"/volumes/{volume['Name']}?force=1")
        self.remove_disks()
        for network in engine.read("/networks"):
            if network["Name"].startswith(NAMES):
                engine.remove(f"/networks/{network['Id']}")
                remove_rules(network["Name"], self._namespace.command if self._namespace else ())

    def remove_disks(self) -> None:
        """Remove the disk images of sandboxes: their loop devices would outlive the engine's folder."""
        for folder in (self.data / "agent-workspace").glob("*"):
            images = DiskImages(self.data, folder.name)
            for name in images.names():
                images.remove(name)

    def detach_disks(self) -> None:
        """Detach the loop devices of disk images, and keep the images, as a reboot does."""
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
            # The chains are the whole machine's: an engine that starts would pull them from under all the others. The
            # proxy of each port is enough for the tests.
            f"--iptables={str(self._makes_rules).lower()}",
            # Without them, a sandbox reaches no name server, and each lookup would take ten seconds: refuse it at once.
            "--dns=127.0.0.1",
        ]

    def _bridge_options(self) -> Sequence[str]:
        if self._namespace:
            return ["--bridge=none"]
        return [f"--bridge={self._slot.bridge}", f"--fixed-cidr={self._slot.network}"]

    def _answers(self) -> bool:
        if self._daemon is not None and self._daemon.poll() is not None:
            raise RuntimeError(f"the engine did not start: {(self._directory / 'log').read_text()[-2000:]}")
        command = ["docker", "--host", self.host, "version"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def detach_disk(image: Path) -> bool:
    """Detach an image's loop device, and remove the link to it; False: it had none."""
    found = subprocess.run(
        ["losetup", "--noheadings", "--output", "NAME", "--associated", image], check=True, capture_output=True
    )
    for device in found.stdout.decode().split():
        subprocess.run(["losetup", "--detach", device], check=True, capture_output=True)
    (DEVICES / image.stem).unlink(missing_ok=True)
    return bool(found.stdout)


@contextmanager
def running_private_engine(images: Sequence[str], *, disk_bytes: int = 0) -> Iterator[PrivateEngine]:
    """An engine with those images, for the length of the block; `disk_bytes`: on a disk of its own, of that size."""
    with short_directory("engine") as directory, _slot_with_bridge() as slot, _disk(directory, disk_bytes):
        engine = PrivateEngine(directory, slot)
        borrowed = bool(images) and borrow_images(engine.data, images)
        try:
            engine.start()
            for image in () if borrowed else images:
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
    """An engine in a network namespace, without a bridge of its own.

    Args:
        makes_rules: it makes firewall rules in the namespace, as engines do by default: sandboxes' packets leave it
            with the address of the machine.
    """
    with short_directory("engine") as directory, taken_slot() as slot:
        engine = PrivateEngine(directory, slot, namespace, makes_rules=makes_rules)
        assert borrow_images(engine.data, images)
        try:
            engine.start()
            yield engine
            engine.clear()
        finally:
            engine.stop()
            engine.remove_disks()


@contextmanager
def _disk(directory: Path, size: int) -> Iterator[None]:
    """A disk in memory for the engine's data, of so many bytes; 0: none."""
    data = directory / "data"
    if size == 0:
        yield
        return
    data.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "aw-engine", data], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", data], check=True, capture_output=True)


@contextmanager
def _alone() -> Iterator[None]:
    """One start at a time on this machine: a starting daemon rebuilds the firewall's chains, which all share."""
    with (ROOT / "aw-engine.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _slot_with_bridge() -> Iterator[Slot]:
    """A slot whose network no other program uses, and its bridge, which has the gateway's address."""
    _sweep_bridges()
    with taken_slot(lambda slot: is_unused(slot.network)) as slot:
        # Without an address of its own a bridge has the lowest of its ports', which changes as containers come and go:
        # packets to the one that the others know are lost until they ask again, half a minute later.
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

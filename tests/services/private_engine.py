"""Docker Engines of the tests' own: stopping it hurts nobody, and nothing of them outlives the tests."""

import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.services import processes
from tests.services.directories import ROOT, short_directory
from tests.waiting import eventually

# A bridge and a network for each engine of each process: test runs at once must not find each other's containers.
BRIDGE_PREFIX = "awe"
FIRST_NETWORK, LAST_NETWORK = 28, 31


class PrivateEngine:
    """Another dockerd with its own socket, data, bridge and images."""

    def __init__(self, directory: Path, bridge: str, network: str) -> None:
        self._directory = directory
        self._bridge, self._network = bridge, network
        self._daemon: subprocess.Popen[bytes] | None = None
        self.host = f"unix://{directory}/docker.sock"
        # Where sandboxes find this machine.
        self.gateway = f"{network}.1"

    def start(self) -> None:
        """Start it and wait until it answers."""
        for leftover in ("docker.pid", "docker.sock"):
            (self._directory / leftover).unlink(missing_ok=True)
        with _alone():
            self._daemon = processes.start(self._command(), self._directory / "log")
            eventually(self._answers, deadline_seconds=60)

    def stop(self) -> None:
        """Stop it in an orderly way; its containers end with it."""
        if self._daemon is not None:
            self._daemon.send_signal(signal.SIGTERM)
            self._daemon.wait(60)
            self._daemon = None

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
            CalledProcessError: it failed.
        """
        command = ["docker", "--host", self.host, *arguments]
        return subprocess.run(command, stdin=stdin, capture_output=True, text=True, check=True).stdout  # type: ignore[call-overload, no-any-return]

    def containers(self) -> list[str]:
        """The names of all its containers."""
        return self.docker("ps", "--all", "--format", "{{.Names}}").split()

    def volumes(self) -> list[str]:
        """The names of all its volumes."""
        return self.docker("volume", "ls", "--quiet").split()

    def clear(self) -> None:
        """Remove every container and volume."""
        if names := self.containers():
            self.docker("rm", "--force", "--volumes", *names)
        if names := self.volumes():
            self.docker("volume", "rm", "--force", *names)

    def _command(self) -> Sequence[str]:
        return [
            "dockerd",
            f"--host={self.host}",
            f"--data-root={self._directory}/data",
            f"--exec-root={self._directory}/exec",
            f"--pidfile={self._directory}/docker.pid",
            f"--bridge={self._bridge}",
            f"--fixed-cidr={self._network}.0/24",
            # The chains are the whole machine's: an engine that starts would pull them from under all the others. The
            # proxy of each port is enough for the tests.
            "--iptables=false",
        ]

    def _answers(self) -> bool:
        if self._daemon is not None and self._daemon.poll() is not None:
            raise RuntimeError(f"the engine did not start: {(self._directory / 'log').read_text()[-2000:]}")
        command = ["docker", "--host", self.host, "version"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


@contextmanager
def running_private_engine(images: Sequence[str]) -> Iterator[PrivateEngine]:
    """An engine with those images, for the length of the block."""
    with short_directory("engine") as directory, _bridge() as (bridge, network):
        engine = PrivateEngine(directory, bridge, network)
        try:
            engine.start()
            for image in images:
                engine.load(image)
            yield engine
            engine.clear()
        finally:
            engine.stop()


@contextmanager
def _alone() -> Iterator[None]:
    """One start at a time on this machine: a daemon that starts makes the firewall's chains anew, under all others."""
    with (ROOT / "aw-engine.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _bridge() -> Iterator[tuple[str, str]]:
    """A bridge with the first address of a network of its own; their names."""
    links = Path("/sys/class/net")
    for left in links.glob(f"{BRIDGE_PREFIX}*"):
        if not Path("/proc", left.name.removeprefix(BRIDGE_PREFIX).split("-")[0]).exists():
            _remove_bridge(left.name)
    names = {f"{BRIDGE_PREFIX}{os.getpid()}-{number}": number for number in range(FIRST_NETWORK, LAST_NETWORK + 1)}
    bridge = next(name for name in names if not (links / name).exists())
    network = f"172.{names[bridge]}.{os.getpid() % 256}"
    for command in (
        ["ip", "link", "add", bridge, "type", "bridge"],
        ["ip", "address", "add", f"{network}.1/24", "dev", bridge],
        ["ip", "link", "set", bridge, "up"],
    ):
        subprocess.run(command, check=True, capture_output=True)
    try:
        yield bridge, network
    finally:
        _remove_bridge(bridge)


def _remove_bridge(name: str) -> None:
    subprocess.run(["ip", "link", "delete", name], check=True, capture_output=True)

"""Power loss: an engine and all that runs on it end at once, with no chance to say anything."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.services.private_engine import PrivateEngine
from tests.waiting import eventually

PROCESSES = Path("/proc")


def cut_power(engine: PrivateEngine) -> None:
    """Kill the engine's daemon, its containerd and shims, and every process in its containers; forget its memory."""
    home = str(engine.data.parent)
    containers = {folder.name for folder in (engine.data / "containers").glob("*")}
    engine.kill()
    eventually(lambda: not _kill(home, containers), deadline_seconds=20)
    _forget(engine.data.with_name("exec"))


def _forget(memory: Path) -> None:
    """Remove what a machine has in `/run`, in memory: a container whose shim left its folder there can't be started."""
    mounts = (line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines())
    for mount in [mount for mount in mounts if mount.startswith(f"{memory}/")]:
        subprocess.run(["umount", "--lazy", mount], check=True)
    shutil.rmtree(memory)


def _kill(home: str, containers: set[str]) -> list[int]:
    """Kill what is left of it; the numbers of the processes that were still there."""
    found = [pid for pid in _pids() if _belongs(pid, home, containers)]
    for pid in found:
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            _thaw(pid)
    return found


def _thaw(pid: int) -> None:
    """Let a killed process end: the first version of control groups keeps what is frozen from dying."""
    for line in (PROCESSES / str(pid) / "cgroup").read_text().splitlines():
        _, controller, path = line.split(":", 2)
        if controller == "freezer" and "docker" in path:
            Path(f"/sys/fs/cgroup/freezer{path}/freezer.state").write_text("THAWED")


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in PROCESSES.iterdir() if entry.name.isdigit())


def _belongs(pid: int, home: str, containers: set[str]) -> bool:
    """Whether a process names the engine's directory as an argument, or is in a container's control group."""
    with suppress(OSError):
        if _state(pid) == "Z" or pid == os.getpid():
            return False
        if any(word.startswith((home, f"unix://{home}")) for word in _arguments(pid)):
            return True
        groups = (PROCESSES / str(pid) / "cgroup").read_text()
        return any(container in groups for container in containers)
    return False


def _arguments(pid: int) -> list[str]:
    words = (PROCESSES / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    return [word.partition("=")[2] if word.startswith("--") else word for word in words]


def _state(pid: int) -> str:
    return (PROCESSES / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]

"""The processes of a private engine: its daemon, its containerd and shims, and those in its containers."""

import os
import signal
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from tests.waiting import eventually

PROCESSES = Path("/proc")
SHIM = "containerd-shim"
# Makes a container. Its name for the container's process until the start, when that executes the container's program.
RUNC, RUNC_INIT = "runc", "runc:["


def kill_all(home: Path, containers: Collection[str]) -> list[int]:
    """Kill every process of the engine in a directory and of these containers; return their pids."""
    found = [pid for pid in _pids() if _belongs(pid, home, containers)]
    for pid in found:
        _kill(pid)
    return found


def kill_half_made_shims(home: Path) -> list[int]:
    """Kill the engine's shims without a started container; return their pids and those of their containers.

    A daemon that is killed with its containerd during a container's start may leave a shim without a container. The
    next daemon waits for that shim forever and holds the container's lock, so no `docker start` or `inspect` of the
    container returns. Or it leaves a container that waits for its start: the next daemon does not know it, and it keeps
    the container's volumes mounted, also after their removal.
    """
    with suppress(AssertionError):
        eventually(lambda: not _makes_container(home), deadline_seconds=5)
    shims = {pid for pid in _pids() if _is_shim(pid, home)}
    children = {pid: parent for pid in _pids() if (parent := _parent(pid)) in shims}
    started = {parent for pid, parent in children.items() if not _awaits_start(pid)}
    # A child of a shim that has not executed its program yet looks like a shim.
    found = [pid for pid in shims - started if _parent(pid) not in shims]
    found += [pid for pid, parent in children.items() if parent in found]
    for pid in found:
        _kill(pid)
    return found


def _makes_container(home: Path) -> bool:
    return any(_name(pid) == RUNC and _is_shim(_parent(pid), home) for pid in _pids())


def _awaits_start(pid: int) -> bool:
    name = _name(pid)
    return not name or name.startswith(RUNC_INIT)


def _name(pid: int) -> str:
    """The name of a process; empty: it has ended."""
    with suppress(OSError):
        return (PROCESSES / str(pid) / "comm").read_text().rstrip()
    return ""


def _kill(pid: int) -> None:
    with suppress(FileNotFoundError, ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        _unfreeze(pid)


def _unfreeze(pid: int) -> None:
    """Unfreeze a killed process, so that it ends: cgroups v1 keep frozen processes from dying."""
    for line in (PROCESSES / str(pid) / "cgroup").read_text().splitlines():
        _, controller, path = line.split(":", 2)
        if controller == "freezer" and "docker" in path:
            Path(f"/sys/fs/cgroup/freezer{path}/freezer.state").write_text("THAWED")


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in PROCESSES.iterdir() if entry.name.isdigit())


def _is_shim(pid: int, home: Path) -> bool:
    with suppress(OSError):
        return _name(pid).startswith(SHIM) and _names(pid, home)
    return False


def _belongs(pid: int, home: Path, containers: Collection[str]) -> bool:
    """Whether the engine's directory is an argument of the process, or the process is in a container's cgroup."""
    with suppress(OSError):
        if _status(pid)[0] == "Z" or pid == os.getpid():
            return False
        if _names(pid, home):
            return True
        groups = (PROCESSES / str(pid) / "cgroup").read_text()
        return any(container in groups for container in containers)
    return False


def _names(pid: int, home: Path) -> bool:
    words = (PROCESSES / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    values = [word.partition("=")[2] if word.startswith("--") else word for word in words]
    return any(value.removeprefix("unix://").startswith(f"{home}/") for value in values)


def _parent(pid: int) -> int:
    with suppress(OSError):
        return int(_status(pid)[1])
    return 0


def _status(pid: int) -> list[str]:
    """The fields of a process's status."""
    return (PROCESSES / str(pid) / "stat").read_text().rpartition(")")[2].split()

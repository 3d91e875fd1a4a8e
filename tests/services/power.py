"""Power loss: an engine and its containers end immediately, without cleanup."""

import shutil
import subprocess
from pathlib import Path

from tests.services.engine_processes import kill_all
from tests.services.private_engine import PrivateEngine
from tests.waiting import eventually

# A process that is starting has no arguments for a moment, and is not found then.
CLEAN_CHECKS = 3


def cut_power(engine: PrivateEngine) -> None:
    """Kill the engine's daemon, containerd, shims and the processes in its containers; remove its files in memory."""
    containers = {folder.name for folder in (engine.data / "containers").glob("*")}
    engine.kill()
    checks: list[bool] = []

    def nothing_runs() -> bool:
        checks.append(not kill_all(engine.data.parent, containers))
        return len(checks) >= CLEAN_CHECKS and all(checks[-CLEAN_CHECKS:])

    eventually(nothing_runs)
    unmount(engine.data / "volumes")
    engine.detach_disks()
    _forget(engine.data.with_name("exec"))


def unmount(folder: Path) -> None:
    """Unmount everything below a folder."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    # In reverse order, so that nested mounts are unmounted first.
    for mount in [mount for mount in reversed(mounts) if mount.startswith(f"{folder}/")]:
        subprocess.run(["umount", "--lazy", mount], check=True)


def _forget(memory: Path) -> None:
    """Remove the engine's files of `/run`, which is in memory. A shim's folder would prevent the container's start."""
    unmount(memory)
    shutil.rmtree(memory)

"""The repository's directory, and directories for servers: with short paths for sockets, open to servers' users."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.services import leases
from tests.services.loop_devices import detach_below

REPOSITORY = Path(__file__).parents[2]
ROOT = Path("/tmp")
# A file system in memory, in which a server creates and removes files in a twentieth of the time.
MEMORY = Path("/dev/shm")
ENOUGH_BYTES = 2 * 1024**3


@contextmanager
def short_directory(kind: str, *, in_memory: bool = False) -> Iterator[Path]:
    """Create a directory for the length of the block; first remove those of killed processes.

    Args:
        kind: its purpose, a part of its name.
        in_memory: put it in memory if there is room.
    """
    root = MEMORY if in_memory and has_room(MEMORY) else ROOT
    for left in root.glob(f"aw-{kind}-*-*"):
        if leases.has_ended(left.name.split("-")[2]):
            _remove(left)
    directory = Path(tempfile.mkdtemp(prefix=f"aw-{kind}-{leases.own_lease()}-", dir=root))
    try:
        yield directory
    finally:
        _remove(directory)


def has_room(root: Path) -> bool:
    """Whether there is enough room for servers' files."""
    return os.access(root, os.W_OK) and shutil.disk_usage(root).free >= ENOUGH_BYTES


def _remove(left: Path) -> None:
    detach_below(left)
    for place in _mounts_below(left):
        subprocess.run(["umount", "--lazy", place], capture_output=True, check=False)  # other processes remove it too
    shutil.rmtree(left, ignore_errors=True)


def _mounts_below(directory: Path) -> list[str]:
    """What is mounted in the directory, the innermost first.

    An engine mounts its folder on itself, and one that was killed leaves this.
    """
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [place for place in reversed(mounted) if Path(place).is_relative_to(directory)]

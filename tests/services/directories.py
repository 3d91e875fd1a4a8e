"""The repository's directory, and some for servers: short enough for a socket's name, open to a server's user."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.services import leases

REPOSITORY = Path(__file__).parents[2]
ROOT = Path("/tmp")
# Where a file costs no disk: what a server makes and removes for each test takes a twentieth of the time.
MEMORY = Path("/dev/shm")
ENOUGH_BYTES = 2 * 1024**3


@contextmanager
def short_directory(kind: str, *, in_memory: bool = False) -> Iterator[Path]:
    """A directory that is gone at the end of the block; what killed processes left behind goes first.

    Args:
        kind: what it is for, in its name.
        in_memory: nothing in it needs a disk; without room in memory it is on one all the same.
    """
    root = MEMORY if in_memory and has_room(MEMORY) else ROOT
    for left in root.glob(f"aw-{kind}-*-*"):
        if leases.has_ended(left.name.split("-")[2]):
            _remove(left)
    directory = Path(tempfile.mkdtemp(prefix=f"aw-{kind}-{leases.own_lease()}-", dir=root))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def has_room(root: Path) -> bool:
    """Whether servers can keep their files there."""
    return os.access(root, os.W_OK) and shutil.disk_usage(root).free >= ENOUGH_BYTES


def _remove(left: Path) -> None:
    with suppress(FileNotFoundError):  # others sweep too
        for mounted in filter(Path.is_mount, left.iterdir()):
            subprocess.run(["umount", mounted], check=False)
    shutil.rmtree(left, ignore_errors=True)

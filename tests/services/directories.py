"""The repository's directory, and some for servers: short enough for a socket's name, open to a server's user."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
ROOT = Path("/tmp")


@contextmanager
def short_directory(kind: str) -> Iterator[Path]:
    """A directory that is gone at the end of the block; what killed processes left behind goes first."""
    for left in ROOT.glob(f"aw-{kind}-*-*"):
        if not _is_alive(left.name.split("-")[2]):
            _remove(left)
    directory = Path(tempfile.mkdtemp(prefix=f"aw-{kind}-{os.getpid()}-", dir=ROOT))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _remove(left: Path) -> None:
    with suppress(FileNotFoundError):  # others sweep too
        for mounted in filter(Path.is_mount, left.iterdir()):
            subprocess.run(["umount", mounted], check=False)
    shutil.rmtree(left, ignore_errors=True)


def _is_alive(pid: str) -> bool:
    return not pid.isdigit() or Path("/proc", pid).exists()

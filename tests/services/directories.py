"""Directories for servers: short enough for a socket's name, and open to the user that a server runs as."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path("/tmp")


@contextmanager
def short_directory(kind: str) -> Iterator[Path]:
    """A directory that is gone at the end of the block; what killed processes left behind goes first."""
    for left in ROOT.glob(f"aw-{kind}-*-*"):
        if not _is_alive(left.name.split("-")[2]):
            shutil.rmtree(left, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(prefix=f"aw-{kind}-{os.getpid()}-", dir=ROOT))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _is_alive(pid: str) -> bool:
    return not pid.isdigit() or Path("/proc", pid).exists()

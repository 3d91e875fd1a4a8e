"""Locked files as liveness signals: the kernel releases a lock when its process dies, in any pid namespace."""

import fcntl
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from uuid import uuid4

LEASES = Path("/tmp/aw-test-leases")
# Older files of ended processes are removed if those processes left nothing behind.
KEPT_SECONDS = 7 * 24 * 3600
# The locked files, open until this process ends.
_held: list[int | None] = []


def lock(path: Path) -> int | None:
    """Lock a file, created if missing; return the locking descriptor, or None if another process holds the lock."""
    make_shared(path.parent)
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def make_shared(directory: Path) -> None:
    """Create a directory that every user may write to. It is not sticky, because users open each other's files."""
    with suppress(FileExistsError):
        directory.mkdir()
        directory.chmod(0o777)


@cache
def own_lease() -> str:
    """The name of this process's lease, a part of the names of everything that must not outlive the process."""
    name = f"p{uuid4().hex[:8]}"
    _held.append(lock(LEASES / name))
    return name


def has_ended(name: str) -> bool:
    """Whether the holder of a lease is known to have ended. An unknown lease may be held on another machine."""
    try:
        descriptor = os.open(LEASES / name, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def remove_old(left: Iterable[str]) -> None:
    """Remove the old leases of ended processes, except those that are part of a name in `left`.

    Without its lease, nothing would remove what a process left: an unknown lease may be held.
    """
    make_shared(LEASES)
    names = "\n".join(left)
    for path in LEASES.iterdir():
        with suppress(FileNotFoundError):  # another process removes them too
            is_old = path.stat().st_mtime < time.time() - KEPT_SECONDS
            if is_old and has_ended(path.name) and path.name not in names:
                path.unlink()

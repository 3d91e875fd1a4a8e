"""Files that only their owner can read, written atomically."""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def create_file(path: Path, text: str) -> None:
    """Write a file unless it exists."""
    with _written(path, text) as draft, suppress(FileExistsError):
        os.link(draft, path)  # unlike a rename, it never replaces another process's file


def replace_file(path: Path, text: str) -> None:
    """Write a file; replace an existing one."""
    with _written(path, text) as draft:
        draft.replace(path)


def share_with_service(path: Path, *, with_group: bool = True) -> None:
    """Let the service's processes read a key that root has written, if they run as other users.

    The file is given to its folder's owner. In a folder of root's, the folder's group may read it, if it may enter, and
    unless it is not `with_group`.
    """
    # Links are not followed: the folder's owner could have added one to a file of root's.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with suppress(OSError), os.fdopen(os.open(path, flags)) as file:
        folder, found = path.parent.stat(), os.fstat(file.fileno())
        if os.geteuid() == 0 and found.st_nlink == 1 and stat.S_ISREG(found.st_mode):
            os.fchown(file.fileno(), folder.st_uid, folder.st_gid)
            is_open = with_group and folder.st_uid == 0 and folder.st_mode & stat.S_IXGRP
            os.fchmod(file.fileno(), 0o640 if is_open else 0o600)


@contextmanager
def _written(path: Path, text: str) -> Iterator[Path]:
    """A complete file beside the path, mode 0600: no reader gets half of the text."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)

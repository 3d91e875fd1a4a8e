"""The folder that a backup is written into. A backup that fails leaves it as it was, and can be repeated."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shared.errors import Conflict


@contextmanager
def filling(folder: Path) -> Iterator[list[Path]]:
    """Make a folder for the block, or use an empty one. If the block fails, remove the files that it has listed.

    Yields:
        The list. The block adds the files that it has created itself: another backup may use the folder, too.

    Raises:
        Conflict: the folder is not empty.
    """
    is_new = not folder.exists()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise Conflict(f"{folder} is not empty: a backup needs a new folder")
    written: list[Path] = []
    try:
        yield written
    except BaseException:
        _remove(written, folder if is_new else None)
        raise


def create_private(path: Path) -> None:
    """Create an empty file that only its owner can read.

    Raises:
        FileExistsError: there is one already.
    """
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _remove(files: list[Path], folder: Path | None) -> None:
    for file in files:
        file.unlink(missing_ok=True)
    if folder is not None:
        with suppress(OSError):  # something else has put files there
            folder.rmdir()

"""Files that only their owner reads, written whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def create_file(path: Path, text: str) -> None:
    """Write a file, unless it is there already."""
    with _written(path, text) as draft, suppress(FileExistsError):
        os.link(draft, path)  # unlike a rename, it never replaces what another process has put there


def replace_file(path: Path, text: str) -> None:
    """Write a file, whatever was there."""
    with _written(path, text) as draft:
        draft.replace(path)


@contextmanager
def _written(path: Path, text: str) -> Iterator[Path]:
    """A file beside the path, mode 0600, that holds the whole text: nobody sees half of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)

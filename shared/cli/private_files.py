"""Files that only their owner can read, written atomically."""

import os
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

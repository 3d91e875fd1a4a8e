"""The files that the processes of a host count in, for Prometheus' library in its multi-process mode.

A file is named after a slot, not after a process's number: whoever comes next takes the slot and counts on. So a
restart is no reset, and there are no more files than there were processes at a time.
"""

import fcntl
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Lock
from typing import IO

import structlog
from prometheus_client import Metric
from prometheus_client.multiprocess import MultiProcessCollector

log = structlog.get_logger()

# Of each file, so many bytes are there from the beginning: room for a hundred specs.
FILE_BYTES = 256 * 1024
KINDS = ("counter", "histogram")


@dataclass(frozen=True, eq=False)
class Slot:
    """What a process's files are named after; its own as long as it keeps `lock` open."""

    lock: IO[str]

    def __str__(self) -> str:
        """Its name, as the library asks for it."""
        return Path(self.lock.name).stem

    def paths(self) -> list[Path]:
        """The files."""
        return [Path(self.lock.name).with_name(f"{kind}_{self}.db") for kind in KINDS]

    def is_whole(self) -> bool:
        """Whether all of it is where others look for it."""
        with suppress(OSError):
            ours = os.path.samestat(os.fstat(self.lock.fileno()), Path(self.lock.name).stat())
            return ours and all(path.exists() for path in self.paths())
        return False


class CounterFiles:
    """The files of this process.

    Args:
        directory: where those of the host are; made if it is not there.
        process: what kind of process this is.

    Raises:
        OSError: no files can be made there.
    """

    def __init__(self, directory: Path, process: str) -> None:
        self._directory, self._process, self._lock = directory, process, Lock()
        self._slot = self._take()

    def slot(self) -> Slot:
        """The one to count in: another one once somebody has removed its files, if there can be another."""
        with self._lock:
            if not self._slot.is_whole():
                with suppress(OSError):
                    gone, self._slot = self._slot, self._take()
                    gone.lock.close()
                    log.warning("counting_anew", directory=str(self._directory), slot=str(self._slot))
            return self._slot

    def _take(self) -> Slot:
        """The first that no living process has: the kernel lets go of a lock with its process, however that ends."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for number in count(1):
            file = (self._directory / f"{self._process}.{number}.lock").open("w")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                continue
            slot = Slot(file)
            for path in slot.paths():
                _make_sound(path)
            return slot
        raise AssertionError  # numbers don't end


def read_counters(directory: Path) -> Iterable[Metric]:
    """The sum of all the files there, but for those that nobody can read."""
    paths = list(directory.glob("*.db"))
    try:
        return _merge(paths)
    except Exception:  # noqa: BLE001 - whatever is wrong with one of them
        return _merge([path for path in paths if _is_sound(path)])


def _merge(paths: Iterable[Path]) -> Iterable[Metric]:
    merged: Iterable[Metric] = MultiProcessCollector.merge([str(path) for path in paths])  # type: ignore[no-untyped-call]
    return merged


def _make_sound(path: Path) -> None:
    """A file that can be read, and whose blocks exist: to write into a hole of it, with the disk full, is a SIGBUS."""
    if _is_sound(path):
        return
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, FILE_BYTES)
    draft.replace(path)


def _is_sound(path: Path) -> bool:
    """Not if the machine went down while it was written: nobody could read anything any more."""
    try:
        with path.open("rb") as file:
            used = int.from_bytes(file.read(4), sys.byteorder, signed=True)
        _merge([path])
        return 0 <= used <= path.stat().st_size >= FILE_BYTES
    except Exception:  # noqa: BLE001 - whatever is wrong with what is in it
        return False

"""The counter files of a host's processes, for the multi-process mode of Prometheus' client library.

A file is named after a slot, not after a process id: the next process takes the slot and continues its counters. So a
restart resets nothing, and there are no more files than there were concurrent processes.
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

# The allocated size of each file: space for a hundred specs.
FILE_BYTES = 256 * 1024
KINDS = ("counter", "histogram")


@dataclass(frozen=True, eq=False)
class Slot:
    """The name of a process's files. The process owns it as long as `lock` is open."""

    lock: IO[str]

    def __str__(self) -> str:
        """The name, in the form that the library expects."""
        return Path(self.lock.name).stem

    def paths(self) -> list[Path]:
        """The counter files of the slot."""
        return [Path(self.lock.name).with_name(f"{kind}_{self}.db") for kind in KINDS]

    def is_whole(self) -> bool:
        """Whether the lock and all counter files still exist under their names."""
        with suppress(OSError):
            is_same = os.path.samestat(os.fstat(self.lock.fileno()), Path(self.lock.name).stat())
            return is_same and all(path.exists() for path in self.paths())
        return False


class CounterFiles:
    """The counter files of this process.

    Args:
        directory: the directory of the host's counter files; created if missing.
        process: the kind of this process.

    Raises:
        OSError: files cannot be created there.
    """

    def __init__(self, directory: Path, process: str) -> None:
        self._directory, self._process, self._lock = directory, process, Lock()
        self._slot = self._take()

    def slot(self) -> Slot:
        """The slot to count in. If its files were removed, try to take another one."""
        with self._lock:
            if not self._slot.is_whole():
                with suppress(OSError):
                    removed, self._slot = self._slot, self._take()
                    removed.lock.close()
                    log.warning("counter_files_recreated", directory=str(self._directory), slot=str(self._slot))
            return self._slot

    def _take(self) -> Slot:
        """Take the first free slot. The kernel releases a lock when its process ends, for any reason."""
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
                _repair(path)
            return slot
        raise AssertionError  # `count` never ends


def read_counters(directory: Path) -> Iterable[Metric]:
    """The sum of all files in the directory, except unreadable ones."""
    paths = list(directory.glob("*.db"))
    try:
        return _merge(paths)
    except Exception:  # noqa: BLE001 - a damaged file raises anything
        return _merge([path for path in paths if _is_sound(path)])


def _merge(paths: Iterable[Path]) -> Iterable[Metric]:
    merged: Iterable[Metric] = MultiProcessCollector.merge([str(path) for path in paths])  # type: ignore[no-untyped-call]
    return merged


def _repair(path: Path) -> None:
    """Create a readable file with allocated blocks: writing into a hole with a full disk raises SIGBUS."""
    if _is_sound(path):
        return
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, FILE_BYTES)
    draft.replace(path)


def _is_sound(path: Path) -> bool:
    """Whether the file is readable. A crash of the machine may have damaged it, and then no counter can be read."""
    try:
        with path.open("rb") as file:
            used = int.from_bytes(file.read(4), sys.byteorder, signed=True)
        _merge([path])
        return 0 <= used <= path.stat().st_size >= FILE_BYTES
    except Exception:  # noqa: BLE001 - damaged content raises anything
        return False

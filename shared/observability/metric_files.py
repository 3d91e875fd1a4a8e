"""The files of `prometheus_client`'s multiprocess mode: each process counts in files that are named after its pid.

The library never deletes them. Here a new process takes over the files of a dead one: a restart resets nothing, and
there are no more files than there were concurrent processes.
"""

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from time import monotonic

import structlog
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

log = structlog.get_logger()

KINDS = ("counter", "histogram")
# Space for `metrics.MAX_SPECS` specs with the longest ids, and for all routes. The library lets a full file grow.
FILE_BYTES = 2 * 1024 * 1024
# Seconds between two checks whether the files exist.
CHECK_SECONDS = 1.0
ATTEMPTS = 5


class ProcessFiles:
    """The files of this process. The library calls this at each count for the current name.

    Raises:
        OSError: files cannot be created in the directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory, self._numbers = directory, count(1)
        self._name = self._create()
        self._check_at = 0.0

    def __call__(self) -> str:
        """Return the name of the files. If files were removed, it is a new name: then the library opens new files."""
        if monotonic() < self._check_at:
            return self._name
        self._check_at = monotonic() + CHECK_SECONDS
        if not all(self._path(kind, self._name).exists() for kind in KINDS):
            with suppress(OSError):
                self._name = self._create()
                log.warning("counter_files_recreated", directory=str(self._directory), files=self._name)
        return self._name

    def _create(self) -> str:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"{os.getpid()}.{next(self._numbers)}"
        for kind in KINDS:
            path = self._path(kind, name)
            if not path.exists():
                self._take_over(kind, path)
            if not _is_readable(path):
                path.unlink(missing_ok=True)
            with path.open("ab") as file:
                # The library maps the file; writing into a hole with a full disk would raise SIGBUS.
                os.posix_fallocate(file.fileno(), 0, FILE_BYTES)
        return name

    def _take_over(self, kind: str, path: Path) -> None:
        """Rename a file that no living process counts in, if there is one."""
        for left in self._directory.glob(f"{kind}_*.db"):
            pid = left.stem.removeprefix(f"{kind}_").partition(".")[0]
            if pid == str(os.getpid()) or not Path("/proc", pid).exists():
                with suppress(FileNotFoundError):  # another new process took it
                    left.rename(path)
                    return

    def _path(self, kind: str, name: str) -> Path:
        return self._directory / f"{kind}_{name}.db"


class HostCollector(Collector):
    """The sum over all processes that count in a directory. Without the directory, this process's metrics."""

    def __init__(self, directory: Path, own: CollectorRegistry) -> None:
        self._directory, self._own = directory, own

    def collect(self) -> Iterable[Metric]:
        """Read all files; leave unreadable ones out."""
        own = list(self._own.collect())  # recreates this process's files if they were removed
        if not self._directory.is_dir():
            return own
        for attempt in range(ATTEMPTS):
            with suppress(Exception):  # a damaged file raises anything, and new processes rename files concurrently
                return _merge(path for path in self._directory.glob("*.db") if not attempt or _is_readable(path))
        return own


def _merge(paths: Iterable[Path]) -> Iterable[Metric]:
    merged: Iterable[Metric] = MultiProcessCollector.merge([str(path) for path in paths])  # type: ignore[no-untyped-call]
    return merged


def _is_readable(path: Path) -> bool:
    """Whether the library can read the file and count in it. A crash of the machine may have damaged it."""
    try:
        _merge([path])
        with path.open("rb") as file:
            used = int.from_bytes(file.read(4), sys.byteorder, signed=True)
    except Exception:  # noqa: BLE001 - damaged content raises anything
        return False
    return 0 <= used <= path.stat().st_size

"""What processes count for Prometheus: in files that those of a host share, or in memory until that is configured.

A file is named after a slot, not after a process's number: whoever comes next takes the slot and counts on. So a
restart is no reset, and there are no more files than there were processes at a time.
"""

import fcntl
import os
import sys
from collections.abc import Collection
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import IO

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server, values
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from sqlmodel import Session

from shared.settings import Settings

log = structlog.get_logger()

# The library's own name for where its files are.
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
# Of each file, so many bytes are there from the beginning: room for a hundred specs.
FILE_BYTES = 256 * 1024
KINDS = ("counter", "histogram")
BOOT_BUCKETS = (0.2, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 90, 120)
NOTES = "starts"


class Source(StrEnum):
    """Where a new sandbox came from."""

    POOL = "pool"
    BOOT = "boot"


_IN_MEMORY = CollectorRegistry()
_STARTS = Counter(
    "agent_workspace_sandbox_starts",
    "Sandboxes started of specs with a warm pool: from the pool, or by a boot of their own",
    ("spec", "source"),
    registry=_IN_MEMORY,
)
_REFILL = Histogram(
    "agent_workspace_warm_pool_refill_seconds",
    "From the wish for a member of the warm pool until it is ready",
    ("spec",),
    buckets=BOOT_BUCKETS,
    registry=_IN_MEMORY,
)


# --- counting -------------------------------------------------------------------------------------------------------


def note_start(session: Session, spec_id: str, source: Source) -> None:
    """Say that this transaction starts a sandbox; it is counted if that is committed."""
    session.info.setdefault(NOTES, []).append((spec_id, source))


def count_starts(session: Session) -> None:
    """Count what was noted in this session, which is committed."""
    noted: Collection[tuple[str, Source]] = session.info.get(NOTES, ())
    with suppress(Exception):  # what is committed does not fail for a number
        for spec_id, source in noted:
            for either in Source:
                _STARTS.labels(spec_id, either)  # a share of nothing is no number: both are there from the first on
            _STARTS.labels(spec_id, source).inc()


def observe_refill(spec_id: str, took: timedelta) -> None:
    """Keep how long a member of the warm pool took; by two clocks, perhaps."""
    with suppress(Exception):
        _REFILL.labels(spec_id).observe(max(0.0, took.total_seconds()))


# --- a process's files ----------------------------------------------------------------------------------------------


def configure_instruments(settings: Settings, process: str) -> None:
    """Count in files from here on; call it before anything is counted.

    Where they can't be made it goes on in memory: no service is refused for want of numbers.

    Args:
        process: what kind of process this is; several of a kind get a file each.
    """
    directory = settings.metrics_dir
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        slot = _take_slot(directory, process)
        for kind in KINDS:
            _make_sound(directory / f"{kind}_{_name(slot)}.db")
    except OSError as error:
        log.warning("counting_in_memory", directory=str(directory), error=type(error).__name__)
        return
    os.environ[DIRECTORY] = str(directory)
    # Asked for the name again and again, it keeps the slot's file open, and so its lock, for as long as it counts.
    values.ValueClass = values.MultiProcessValue(lambda: _name(slot))  # type: ignore[no-untyped-call]


def collector(settings: Settings) -> Collector:
    """What the processes of this host have counted; before it is configured, what this one has."""
    if values.ValueClass is values.MutexValue:
        return _IN_MEMORY
    return MultiProcessCollector(None, str(settings.metrics_dir))  # type: ignore[no-untyped-call]


def serve(settings: Settings, host: str, port: int) -> None:
    """Show the same to whoever asks at that address; if another process does so already, that will do."""
    registry = CollectorRegistry()
    registry.register(collector(settings))
    try:
        start_http_server(port, host, registry)
    except OSError as error:
        log.warning("metrics_not_served", host=host, port=port, error=str(error))


def _take_slot(directory: Path, process: str) -> IO[str]:
    """The first that no living process has: the kernel lets go of a lock with its process, however that ends."""
    for number in count(1):
        file = (directory / f"{process}.{number}.lock").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
        else:
            return file
    raise AssertionError  # numbers don't end


def _name(slot: IO[str]) -> str:
    return Path(slot.name).stem


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
        MultiProcessCollector.merge([str(path)])  # type: ignore[no-untyped-call]
        return 0 <= used <= path.stat().st_size >= FILE_BYTES
    except Exception:  # noqa: BLE001 - whatever is wrong with what is in it
        return False

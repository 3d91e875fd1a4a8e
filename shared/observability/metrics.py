"""What processes count for Prometheus: in files that those of a host share, or in memory until that is configured."""

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, start_http_server, values
from prometheus_client.registry import Collector
from sqlmodel import Session

from shared.observability.counter_files import CounterFiles, read_counters
from shared.settings import Settings

log = structlog.get_logger()

# The library's own name for where its files are.
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
BOOT_BUCKETS = (0.2, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 90, 120)
NOTES = "starts"


class Source(StrEnum):
    """Where a new sandbox came from."""

    POOL = "pool"
    BOOT = "boot"


_OWN = CollectorRegistry()
_STARTS = Counter(
    "agent_workspace_sandbox_starts",
    "Sandboxes started of specs with a warm pool: from the pool, or by a boot of their own",
    ("spec", "source"),
    registry=_OWN,
)
_REFILL = Histogram(
    "agent_workspace_warm_pool_refill_seconds",
    "From the wish for a member of the warm pool until it is ready",
    ("spec",),
    buckets=BOOT_BUCKETS,
    registry=_OWN,
)


# --- counting -------------------------------------------------------------------------------------------------------


def note_start(session: Session, spec_id: str, source: Source) -> None:
    """Say that this transaction starts a sandbox; it is counted if that is committed."""
    session.info.setdefault(NOTES, []).append((spec_id, source))


def count_starts(session: Session) -> None:
    """Count what was noted in this session, which is committed."""
    noted: Collection[tuple[str, Source]] = session.info.get(NOTES, ())
    for spec_id, source in noted:
        count_start(spec_id, source)


def count_start(spec_id: str, source: Source) -> None:
    """Count one that is committed."""
    with suppress(Exception):  # what is committed does not fail for a number
        for either in Source:
            _STARTS.labels(spec_id, either)  # a share of nothing is no number: both are there from the first on
        _STARTS.labels(spec_id, source).inc()


def observe_refill(spec_id: str, took: timedelta) -> None:
    """Keep how long a member of the warm pool took; by two clocks, perhaps."""
    with suppress(Exception):
        _REFILL.labels(spec_id).observe(max(0.0, took.total_seconds()))


# --- showing --------------------------------------------------------------------------------------------------------


def configure_instruments(settings: Settings, process: str) -> None:
    """Count in files from here on; call it before anything is counted.

    Where they can't be made it goes on in memory: no service is refused for want of numbers.

    Args:
        process: what kind of process this is; several of a kind get a file each.
    """
    directory = settings.metrics_dir
    try:
        files = CounterFiles(directory, process)
    except OSError as error:
        log.warning("counting_in_memory", directory=str(directory), error=type(error).__name__)
        return
    os.environ[DIRECTORY] = str(directory)
    # Whenever it counts it asks for the slot, and opens the files of another one if that is what it gets.
    values.ValueClass = values.MultiProcessValue(files.slot)  # type: ignore[no-untyped-call]


def collector(settings: Settings) -> Collector:
    """What the processes of this host have counted; before it is configured, what this one has."""
    if values.ValueClass is values.MutexValue:
        return _OWN
    return _Host(settings.metrics_dir)


def serve(settings: Settings, host: str, port: int) -> None:
    """Show the same to whoever asks at that address; if another process does so already, that will do."""
    registry = CollectorRegistry()
    registry.register(collector(settings))
    try:
        start_http_server(port, host, registry)
    except OSError as error:
        log.warning("metrics_not_served", host=host, port=port, error=str(error))


class _Host(Collector):
    """All processes that count in this directory; without it, this one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def collect(self) -> Iterable[Metric]:
        """The sum of them."""
        own = list(_OWN.collect())  # to read them makes our files anew, if they are gone
        return read_counters(self._directory) if self._directory.is_dir() else own

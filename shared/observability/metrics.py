"""Metrics for Prometheus: in files that a host's processes share, or in memory until that is configured."""

import os
from collections.abc import Collection
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server, values
from prometheus_client.registry import Collector
from sqlmodel import Session

from shared.observability.metric_files import HostCollector, ProcessFiles
from shared.settings import Settings

log = structlog.get_logger()

# The library's variable for the directory of its files.
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
BOOT_BUCKETS = (0.2, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 90, 120)
STARTS = "starts"
# Labels stay in the files: a spec beyond this number of specs is counted as OTHER.
MAX_SPECS = 100
OTHER = "other"


class Source(StrEnum):
    """The source of a new sandbox."""

    POOL = "pool"
    BOOT = "boot"


_OWN = CollectorRegistry()
_STARTS = Counter(
    "agent_workspace_sandbox_starts",
    "Sandboxes started from specs with a warm pool, by source: claimed from the pool, or booted",
    ("spec", "source"),
    registry=_OWN,
)
_REFILL = Histogram(
    "agent_workspace_warm_pool_refill_seconds",
    "Time from the creation of a warm sandbox until it is ready",
    ("spec",),
    buckets=BOOT_BUCKETS,
    registry=_OWN,
)
# The specs that are labels so far.
_specs: set[str] = set()


# --- counting -------------------------------------------------------------------------------------------------------


def record_start(session: Session, spec_id: str, source: Source) -> None:
    """Record that this transaction starts a sandbox. It is counted after the commit."""
    session.info.setdefault(STARTS, []).append((spec_id, source))


def count_starts(session: Session) -> None:
    """Count the starts recorded in a committed session."""
    starts: Collection[tuple[str, Source]] = session.info.get(STARTS, ())
    for spec_id, source in starts:
        count_start(spec_id, source)


def count_start(spec_id: str, source: Source) -> None:
    """Count a committed start."""
    with suppress(Exception):  # a metric must not fail a committed transaction
        spec = _label(spec_id)
        for either in Source:  # create both series, so that a share can be computed from the first start on
            _STARTS.labels(spec, either)
        _STARTS.labels(spec, source).inc()


def observe_refill(spec_id: str, took: timedelta) -> None:
    """Record how long a warm sandbox took to become ready. The times may come from two clocks."""
    with suppress(Exception):
        _REFILL.labels(_label(spec_id)).observe(max(0.0, took.total_seconds()))


def _label(spec_id: str) -> str:
    if spec_id not in _specs and len(_specs) >= MAX_SPECS:
        return OTHER
    _specs.add(spec_id)
    return spec_id


# --- serving --------------------------------------------------------------------------------------------------------


def configure_instruments(settings: Settings) -> None:
    """Count in files; call this before anything is counted.

    If files cannot be created, counting continues in memory: missing metrics must not stop the service.
    """
    directory = settings.metrics_dir
    try:
        files = ProcessFiles(directory)
    except OSError as error:
        log.warning("counting_in_memory", directory=str(directory), error=type(error).__name__)
        return
    os.environ[DIRECTORY] = str(directory)
    values.ValueClass = values.MultiProcessValue(files)  # type: ignore[no-untyped-call]
    for metric in collector(settings).collect():
        _specs.update(sample.labels.get("spec", OTHER) for sample in metric.samples)


def collector(settings: Settings) -> Collector:
    """The metrics of this host's processes; before `configure_instruments`, those of this process."""
    return _OWN if values.ValueClass is values.MutexValue else HostCollector(settings.metrics_dir, _OWN)


def serve(settings: Settings, host: str, port: int) -> None:
    """Serve the metrics over HTTP at that address, unless another process already does."""
    registry = CollectorRegistry()
    registry.register(collector(settings))
    try:
        start_http_server(port, host, registry)
    except OSError as error:
        log.warning("metrics_not_served", host=host, port=port, error=str(error))

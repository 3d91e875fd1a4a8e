"""Metrics for Prometheus, counted in files that a host's processes share, or in memory until those are configured.

No label is an id of a row or a text of a user. Labels without a fixed set of values are limited in number.
"""

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server, values
from prometheus_client.registry import Collector
from sqlmodel import Session

from shared.clock import now
from shared.observability.metric_files import HostCollector, ProcessFiles
from shared.settings import Settings

log = structlog.get_logger()

# The library's variable for the directory of its files.
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
WORK_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
BOOT_BUCKETS = (0.2, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 90, 120)
STARTS = "starts"
# Labels stay in the files: a spec beyond this number of specs is counted as OTHER.
MAX_SPECS = 100
OTHER = "other"


class StartSource(StrEnum):
    POOL = "pool"
    BOOT = "boot"
    # The boot of a warm sandbox, which has no owner.
    REFILL = "refill"


# The sources of sandboxes that have an owner from the start on.
OWNED = (StartSource.POOL, StartSource.BOOT)


# The metrics of all processes are here; those of HTTP, which only the API has, are in `api.middleware.responses`.
OWN = CollectorRegistry()
_counter, _histogram = partial(Counter, registry=OWN), partial(Histogram, registry=OWN)
_STARTS = _counter(
    "agent_workspace_sandbox_starts",
    "Sandboxes started from specs with a warm pool, by source: claimed from the pool, or booted",
    ("spec", "source"),
)
_REFILL = _histogram(
    "agent_workspace_warm_pool_refill_seconds",
    "Time from the creation of a warm sandbox until it is ready",
    ("spec",),
    buckets=BOOT_BUCKETS,
)
_START = _histogram(
    "agent_workspace_sandbox_start_seconds",
    "Time of a sandbox's start that succeeded in one run, by source and phase; `total` has every start",
    ("source", "phase"),
    buckets=BOOT_BUCKETS,
)
_CONVERSATION_START = _histogram(
    "agent_workspace_conversation_start_seconds",
    "Time that a start task has spent in a stage; `total` from its request until it is READY",
    ("stage",),
    buckets=BOOT_BUCKETS,
)
_JOB_WAIT = _histogram(
    "agent_workspace_job_wait_seconds",
    "Time that a job's message waited in the queue",
    ("job",),
    buckets=WORK_BUCKETS,
)
_ACTION = _histogram(
    "agent_workspace_reconcile_action_seconds",
    "Time of an action of the reconciler, by its outcome",
    ("action", "outcome"),
    buckets=WORK_BUCKETS,
)
_LEASES_LOST = _counter(
    "agent_workspace_leases_lost",
    "Runs that lost their row to another worker or to a newer desired state",
    ("table",),
)
_RUNS_FAILED = _counter(
    "agent_workspace_runs_failed",
    "Runs that ended because of a bug in this service",
    ("table",),
)
_REQUESTS_FAILED = _counter(
    "agent_workspace_requests_failed",
    "Requests to the API that ended because of a bug in this service",
)
_WEBHOOK_EVENTS = _counter(
    "agent_workspace_webhook_events",
    "Events that agent servers reported, by outcome: stored, or rejected by a quota",
    ("outcome",),
)
# The specs that are labels so far.
_specs: set[str] = set()


# --- counting -------------------------------------------------------------------------------------------------------


def record_start(session: Session, spec_id: str, source: StartSource) -> None:
    """Record that this transaction starts a sandbox. It is counted after the commit."""
    session.info.setdefault(STARTS, []).append((spec_id, source))


def count_starts(session: Session) -> None:
    """Count the starts recorded in a committed session."""
    starts: Collection[tuple[str, StartSource]] = session.info.get(STARTS, ())
    for spec_id, source in starts:
        count_start(spec_id, source)


def count_start(spec_id: str, source: StartSource) -> None:
    with suppress(Exception):  # a metric must not fail a committed transaction
        spec = _label(spec_id)
        for either in OWNED:  # create both series, so that a share can be computed from the first start on
            _STARTS.labels(spec, either)
        _STARTS.labels(spec, source).inc()


def observe_refill(spec_id: str, took: timedelta) -> None:
    """Record how long a warm sandbox took to become ready. The times may come from two clocks."""
    with suppress(Exception):
        _REFILL.labels(_label(spec_id)).observe(max(0.0, took.total_seconds()))


def observe_start(source: StartSource, phases: Mapping[str, float]) -> None:
    """Record the seconds of a sandbox's start, by phase."""
    with suppress(Exception):
        for phase, seconds in phases.items():
            _START.labels(source, phase).observe(max(0.0, seconds))


def observe_stage(stage: str, took: timedelta) -> None:
    """Record how long a start task was in a stage."""
    with suppress(Exception):
        _CONVERSATION_START.labels(stage).observe(max(0.0, took.total_seconds()))


def observe_job(job: str, published_at: float | None) -> None:
    """Record how long a job's message was in the queue. The times come from two clocks; older releases send none."""
    if published_at is not None:
        with suppress(Exception):
            _JOB_WAIT.labels(job).observe(max(0.0, now().timestamp() - published_at))


def observe_action(action: str, seconds: float, *, succeeded: bool) -> None:
    with suppress(Exception):
        _ACTION.labels(action, "ok" if succeeded else "failed").observe(seconds)


def count_lost_lease(table: Any) -> None:
    with suppress(Exception):
        _LEASES_LOST.labels(table).inc()


def count_failed_run(table: Any) -> None:
    """Count a run that ended because of a bug."""
    with suppress(Exception):
        _RUNS_FAILED.labels(table).inc()


def count_failed_request() -> None:
    """Count a request that ended because of a bug."""
    with suppress(Exception):
        _REQUESTS_FAILED.inc()


def count_webhook_events(number: int, *, stored: bool) -> None:
    with suppress(Exception):
        _WEBHOOK_EVENTS.labels("stored" if stored else "refused").inc(number)


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
        settings.var_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
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
    return OWN if values.ValueClass is values.MutexValue else HostCollector(settings.metrics_dir, OWN)


def serve(settings: Settings, host: str, port: int) -> None:
    """Serve the metrics over HTTP at that address, unless another process already does."""
    registry = CollectorRegistry()
    registry.register(collector(settings))
    try:
        start_http_server(port, host, registry)
    except OSError as error:
        log.warning("metrics_not_served", host=host, port=port, error=str(error))

"""Probes of all sandboxes by a health monitor, without waiting for its intervals."""

from dataclasses import replace

from worker.context import WorkerContext
from worker.loops.health_monitor import SHARDS, LivenessMonitor

# The number of failed probes after which an agent server counts as unresponsive.
PROBES = 4


def tolerating_probes(context: WorkerContext) -> WorkerContext:
    """The context of a worker that tolerates `PROBES - 1` failed probes."""
    settings = context.settings.model_copy(update={"health_probe_seconds": 30.0, "health_timeout": 30.0 * PROBES})
    return replace(context, settings=settings)


def probe(monitor: LivenessMonitor, intervals: int = 1) -> None:
    """Probe every sandbox one time per interval."""
    for _ in range(intervals * len(SHARDS)):
        monitor.probe_next_shard()

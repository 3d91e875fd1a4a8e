"""Sandboxes whose disk rejects every write, because the node's disk was full or failed: a restart mounts it again."""

from collections.abc import Collection
from math import inf
from time import monotonic

import structlog

from worker.context import WorkerContext

log = structlog.get_logger()

# The least free space of the node's disk for a restart, whatever AW_MIN_FREE_DISK_BYTES says.
MIN_FREE_BYTES = 16 * 1024**2
# Seconds between two restarts of a sandbox. A restart does not help if the file system is damaged, or if another
# program keeps it mounted.
PAUSE_SECONDS = 600.0


def find_repairable(context: WorkerContext) -> frozenset[str]:
    """The names of the containers that must be restarted to write to their disk.

    None unless the node's disk is known to have space: without it, the container could not start, or would soon fail.

    Raises:
        EngineUnavailable: the engine does not respond.
    """
    failed = context.engine.list_failed_disks()
    return failed if failed and _has_space(context) else frozenset()


def find_repairs(context: WorkerContext, running: Collection[str]) -> frozenset[str]:
    """Of these running containers, those that the resync restarts now. Each failed disk is logged once.

    Raises:
        EngineUnavailable: the engine does not respond.
    """
    failed = context.engine.list_failed_disks().intersection(running)
    for name in failed - context.failed_disks:
        log.warning("disk_failed", container=name)
    context.failed_disks.clear()
    context.failed_disks.update(failed)
    if not failed or not _has_space(context):
        return frozenset()
    latest = monotonic() - PAUSE_SECONDS
    return frozenset(name for name in failed if context.repaired_at.get(name, -inf) < latest)


def record_repair(context: WorkerContext, name: str) -> None:
    """Record that the resync restarts a container because of its disk."""
    context.repaired_at[name] = monotonic()


def forget_repairs(context: WorkerContext, listed: Collection[str]) -> None:
    """Forget the restarts of sandboxes whose volumes the engine no longer lists."""
    for name in context.repaired_at.keys() - set(listed):
        context.repaired_at.pop(name, None)


def _has_space(context: WorkerContext) -> bool:
    free = context.engine.free_bytes()
    return free is not None and free >= max(context.settings.min_free_disk_bytes, MIN_FREE_BYTES)

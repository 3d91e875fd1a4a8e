"""Sandboxes whose disk has become read-only, because the node's disk was full or failed: a restart repairs it."""

from worker.context import WorkerContext
from worker.engine.requirements import find_disk_shortage


def find_repairable(context: WorkerContext) -> frozenset[str]:
    """The names of the containers that need a restart to write to their disk.

    None while the node's disk is nearly full: the next write would make the disk fail again.

    Raises:
        EngineUnavailable: the engine does not respond.
    """
    engine = context.engine
    failed = engine.list_failed_disks()
    if failed and find_disk_shortage(engine, context.settings.min_free_disk_bytes):
        return frozenset()
    return failed

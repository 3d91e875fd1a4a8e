"""Requirements of an engine: the allowed runtimes, and free disk space."""

from collections.abc import Collection

from worker.engine.protocol import Engine, EngineError, EngineRefused


def require_runtimes(engine: Engine, allowed: Collection[str]) -> None:
    """Check that the engine has all runtimes that specs may use.

    Raises:
        EngineRefused: it lacks some.
        EngineUnavailable: it does not respond.
    """
    found = engine.runtimes() if allowed else frozenset()
    if missing := sorted(set(allowed) - found):
        raise EngineRefused(
            f"AW_ALLOWED_RUNTIMES names {', '.join(missing)}, which the engine does not have; "
            f"it has {', '.join(sorted(found))}"
        )


def find_disk_shortage(engine: Engine, min_free_bytes: int) -> str | None:
    """Why the node takes no new sandboxes: its disk is nearly full. None if it has space, or is on another machine."""
    try:
        free = engine.free_bytes()
    except EngineError:
        return None  # the heartbeat reports the engine
    if free is None or free >= min_free_bytes:
        return None
    return (
        f"the disk of the engine's data has {free // 1024**2} MB free, "
        f"less than AW_MIN_FREE_DISK_BYTES ({min_free_bytes // 1024**2} MB)"
    )

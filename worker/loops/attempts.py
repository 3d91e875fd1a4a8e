"""Sequential calls to an engine, one for each container, some of which may hang."""

import time
from collections.abc import Callable, Iterable

import structlog

from worker.context import WorkerContext
from worker.engine.protocol import EngineError, has_responded

log = structlog.get_logger()

# After this many calls without a response, the others wait for the next turn: the engine may be unavailable.
# A single one may be due to its container, and does not delay the others.
MAX_SILENT = 2


def attempt_each(
    context: WorkerContext, names: Iterable[str], call: Callable[[str], None], failure: str, *, limit: int | None = None
) -> None:
    """Call the engine for each of these containers. One whose last call failed comes after all others.

    Args:
        context: remembers which calls failed.
        failure: the log event of a call that fails.
        limit: max number of calls.
    """
    silent = 0
    for name in _sort_failed_last(context, names)[:limit]:
        try:
            call(name)
        except EngineError as error:
            log.warning(failure, container=name, error=str(error))
            context.failed_at[name] = time.monotonic()
            silent += not has_responded(error)
        else:
            context.failed_at.pop(name, None)
        if silent == MAX_SILENT:
            return


def forget_others(context: WorkerContext, listed: set[str]) -> None:
    """Forget the failed calls for containers that the engine no longer lists."""
    for name in set(context.failed_at) - listed:
        context.failed_at.pop(name, None)


def _sort_failed_last(context: WorkerContext, names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (context.failed_at.get(name, 0.0), name))

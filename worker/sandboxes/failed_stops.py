"""Stops of containers that are to be removed: an engine may fail to unpause or stop one, and still remove it."""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from shared.models import Sandbox
from shared.states import Desired
from worker.engine.protocol import EngineError

log = structlog.get_logger()

# Failed attempts of a delete to stop the container. The next one removes it without a stop.
MAX_STOP_ATTEMPTS = 3


@contextmanager
def tolerating_failed_stop(sandbox: Sandbox) -> Iterator[None]:
    """Let the block, which stops a container before its removal, fail if the sandbox is deleted and often failed.

    Raises:
        EngineError: the engine fails to stop the container, and the next attempt may succeed.
    """
    try:
        yield
    except EngineError as error:
        if sandbox.desired != Desired.DELETED or sandbox.attempt < MAX_STOP_ATTEMPTS:
            raise
        log.warning("removed_without_stop", sandbox=sandbox.id, error=str(error))

"""What a worker does beside its jobs, over and over, each in a thread of its own."""

import threading
from collections.abc import Callable

import structlog
from sqlalchemy.exc import SQLAlchemyError

from shared import clock
from shared.observability import failpoints
from worker.engine.protocol import EngineError

log = structlog.get_logger()


def unless_clock_is_wrong(function: Callable[[], None]) -> Callable[[], None]:
    """The same function, which does nothing while this machine's clock is too far from the database's."""

    def call() -> None:
        if not clock.is_wrong():
            function()

    return call


class PeriodicTask:
    """Calls a function again and again until stopped; what it raises is logged, and tried again."""

    def __init__(self, name: str, pause_seconds: float, function: Callable[[], None]) -> None:
        """Prepare the thread; `pause_seconds` pass between two calls."""
        self._pause = pause_seconds
        self._function = function
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin, with a first call at once."""
        self._thread.start()

    def stop(self, wait_seconds: float = 5.0) -> None:
        """Ask for the end, and wait so long for a call that is under way."""
        self._stopped.set()
        self._thread.join(wait_seconds)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                failpoints.begin(self._thread.name)
                self._function()
            except Exception as error:
                # An engine or a database that is away is told in a line; where a defect of ours is, the trace tells.
                trace = not isinstance(error, EngineError | SQLAlchemyError)
                log.warning("routine_failed", routine=self._thread.name, error=type(error).__name__, exc_info=trace)
            self._stopped.wait(self._pause)

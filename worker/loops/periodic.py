"""Periodic tasks of a worker beside its jobs, each in its own thread."""

import threading
from collections.abc import Callable

import structlog

from shared import clock
from shared.db.database import StoreError
from shared.observability import failpoints
from worker.engine.protocol import EngineError

log = structlog.get_logger()


def unless_clock_is_wrong(function: Callable[[], None]) -> Callable[[], None]:
    """Wrap a function so that it does nothing while this machine's clock is too far from the database's."""

    def call() -> None:
        if not clock.is_wrong():
            function()

    return call


class PeriodicTask:
    """Thread that calls a function periodically until stopped. It logs errors and continues."""

    def __init__(self, name: str, pause_seconds: float, function: Callable[[], None]) -> None:
        """Create the thread; it pauses for `pause_seconds` between two calls."""
        self._pause = pause_seconds
        self._function = function
        self._is_stopped = False
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; the first call is immediate."""
        self._thread.start()

    def wake(self) -> None:
        """End the pause: the next call is immediate. One more call follows a call in progress."""
        self._woken.set()

    def stop(self, wait_seconds: float = 5.0) -> None:
        """Stop the thread, and wait up to `wait_seconds` for a call in progress."""
        self._is_stopped = True
        self._woken.set()
        self._thread.join(wait_seconds)

    def _run(self) -> None:
        while not self._is_stopped:
            try:
                failpoints.begin(self._thread.name)
                self._function()
            except Exception as error:
                # An unavailable engine or database gets one line, a bug in this service a stack trace.
                trace = not isinstance(error, EngineError | StoreError)
                log.warning("task_failed", task=self._thread.name, error=type(error).__name__, exc_info=trace)
            self._woken.wait(self._pause)
            self._woken.clear()

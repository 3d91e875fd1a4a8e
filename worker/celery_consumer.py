"""Celery's events for Flower, those of a moment sent together: one message costs as much as twenty."""

import time
from typing import Any

from celery.worker.consumer import Consumer

# How much later Flower may hear of it.
GATHER_SECONDS = 0.1
# A lost connection takes the hub's timers along.
LATEST_SECONDS = 2.0


class EventBatchingConsumer(Consumer):
    """A consumer that sends the first event of a moment with those that follow it."""

    hub: Any
    _flush_events: Any

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """See `Consumer`."""
        super().__init__(*arguments, **options)
        self._flush_until = 0.0

    def on_send_event_buffered(self) -> None:  # type: ignore[override]
        """An event waits to be sent; called by the hub's thread, and by those of the jobs."""
        if self.hub is not None and time.monotonic() >= self._flush_until:
            self._flush_until = time.monotonic() + LATEST_SECONDS
            self.hub.call_soon(self._flush_later)  # timers are for the hub's own thread

    def shutdown(self) -> None:
        """End; what waits is sent first, or Flower would show jobs as running for ever."""
        self._flush_events()
        super().shutdown()

    def _flush_later(self) -> None:
        self.hub.call_later(GATHER_SECONDS, self._flush_now)

    def _flush_now(self) -> None:
        self._flush_until = 0.0
        self._flush_events()

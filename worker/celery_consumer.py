"""Celery's events for Flower, sent in batches: one message costs as much as twenty."""

import time
from typing import Any

from celery.worker.consumer import Consumer

# Delay of the first event of a batch.
BATCH_SECONDS = 0.1
# The hub loses its timers with a lost connection. A new timer is set after this many seconds.
MAX_DELAY_SECONDS = 2.0


class EventBatchingConsumer(Consumer):
    """Consumer that sends an event together with the events of the next 0.1 seconds."""

    hub: Any
    _flush_events: Any

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._flush_until = 0.0

    def on_send_event_buffered(self) -> None:  # type: ignore[override]
        """Schedule the batch of a buffered event. The hub's thread and job threads call this."""
        if self.hub is not None and time.monotonic() >= self._flush_until:
            self._flush_until = time.monotonic() + MAX_DELAY_SECONDS
            self.hub.call_soon(self._flush_later)  # only the hub's own thread may set timers

    def shutdown(self) -> None:
        """Send the buffered events and shut down. Without them Flower would always show these jobs as running."""
        self._flush_events()
        super().shutdown()

    def _flush_later(self) -> None:
        self.hub.call_later(BATCH_SECONDS, self._flush_now)

    def _flush_now(self) -> None:
        self._flush_until = 0.0
        self._flush_events()

"""The consumer of a worker's queues, which filters messages and sends events for Flower in batches."""

import time
from collections.abc import Callable, Container, Mapping
from typing import Any

import structlog
from celery.worker.consumer import Consumer

from shared.observability.correlation import PUBLISHED_AT, REQUEST_ID, is_well_formed

log = structlog.get_logger()

# Delay of the first event of a batch: a message with one event costs as much as a message with twenty.
BATCH_SECONDS = 0.1
# The hub loses its timers when the connection is lost. A new timer is set after this many seconds.
MAX_DELAY_SECONDS = 2.0
# Prefix of the names of Celery's own tasks, such as those of chords. This service sends none of them.
OF_CELERY = "celery."
# The headers that Flower, logs, metrics and traces need. Other headers are dropped: they decide when and how Celery
# runs a job.
HEADERS: dict[str, type[Any] | tuple[type[Any], ...]] = {
    **dict.fromkeys(("task", "id", "root_id", "lang", "origin", "argsrepr", "kwargsrepr"), str),
    **dict.fromkeys((REQUEST_ID, "traceparent", "tracestate"), str),
    "ignore_result": bool,
    PUBLISHED_AT: (int, float),
}


class JobConsumer(Consumer):
    """Consumer that drops messages that are not jobs, and sends the events of each 0.1 seconds together."""

    hub: Any
    strategies: Any
    _flush_events: Any

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._flush_until = 0.0

    def create_task_handler(self, *arguments: Any, **options: Any) -> Callable[..., Any]:
        """Return the function that handles each message. Celery's own raises for some, and logs the body of others."""
        handle = super().create_task_handler(*arguments, **options)

        def handle_job(message: Any) -> None:
            if flaw := find_problem(message, self.strategies):
                log.warning("message_dropped", why=flaw)
                message.ack()
            else:
                message.headers = select_headers(message.headers)
                handle(message)

        return handle_job

    def on_send_event_buffered(self) -> None:  # type: ignore[override]
        """Schedule the batch of a buffered event. The hub's thread and job threads call this."""
        if self.hub is not None and time.monotonic() >= self._flush_until:
            self._flush_until = time.monotonic() + MAX_DELAY_SECONDS
            self.hub.call_soon(self._flush_later)  # only the hub's own thread may set timers

    def shutdown(self) -> None:
        """Send the buffered events and shut down. Without them, Flower would show these jobs as running forever."""
        self._flush_events()
        super().shutdown()

    def _flush_later(self) -> None:
        self.hub.call_later(BATCH_SECONDS, self._flush_now)

    def _flush_now(self) -> None:
        self._flush_until = 0.0
        self._flush_events()


def find_problem(message: Any, tasks: Container[str]) -> str:
    """Return why a message is not one of these tasks with a row's id; empty: it is one. The content is not quoted."""
    task, job_id = message.headers.get("task"), message.headers.get("id")
    if not isinstance(task, str) or not isinstance(job_id, str) or not is_well_formed(job_id):
        return "no task or no id"
    if task not in tasks or task.startswith(OF_CELERY):
        return "unknown task"
    match message.payload:
        # The last part is what Celery would run after the job.
        case [[str()], dict(named), dict(following)] if not named and not any(following.values()):
            return ""
    return f"wrong arguments of {task}"


def select_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known headers of a message that have the right types."""
    known = {name: value for name, value in headers.items() if name in HEADERS and isinstance(value, HEADERS[name])}
    if not is_well_formed(known.get(REQUEST_ID, "")):
        known.pop(REQUEST_ID, None)
    return known

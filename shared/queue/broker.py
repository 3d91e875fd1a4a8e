"""The queue: Celery's configuration and `publish`. The figures were measured with Celery 5.7 on Redis."""

import time
from typing import Any

import structlog
from celery import Celery
from kombu.exceptions import OperationalError

from shared.clock import now
from shared.observability import correlation, failpoints
from shared.observability.correlation import PUBLISHED_AT, REQUEST_ID
from shared.queue.jobs import Job, queue_of
from shared.queue.kombu_patches import FastRetryConnection, install_channels
from shared.settings import Settings

log = structlog.get_logger()

# The max duration of an action between two reads of the store: that of an image pull.
VISIBILITY_TIMEOUT_SECONDS = 1800
# After a failed publish, the time for which jobs are left to the sweep instead of waiting for a dead broker.
BREAKER_SECONDS = 1.0


def make_app(settings: Settings) -> Celery:
    """Create the Celery application of this installation."""
    install_channels()
    app = Celery("agent-workspace", broker=settings.broker, set_as_current=True)
    app.amqp.Connection = FastRetryConnection
    app.conf.update(
        task_ignore_result=True,
        result_backend=None,
        # A late acknowledgement on a lost connection ends the worker (docs/decisions/0003). An early one is safe: a
        # job that dies with its worker is found by its expired lease.
        task_acks_late=False,
        worker_prefetch_multiplier=1,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        # A broker that is read-only, full or failing over responds with errors. They would end the worker.
        broker_channel_error_retry=True,
        broker_transport_options=_transport_options(settings),
        task_publish_retry_policy={
            "max_retries": 1,
            "interval_start": 0,
            "interval_step": 0.1,
            "interval_max": 0.2,
        },
        task_serializer="json",
        accept_content=["json"],
        task_default_queue="unplaced",
        worker_send_task_events=True,
        task_send_sent_event=True,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        enable_utc=True,
    )
    return app


class Publisher:
    """Sends job messages, best effort: the sweep enqueues the rows of lost ones."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._closed_until = 0.0

    def publish(self, *jobs: Job) -> None:
        """Send the jobs that have a node, after the commit of their rows. Broker errors are logged, not raised."""
        for job in jobs:
            if job.node_id is not None and time.monotonic() >= self._closed_until:
                self._send(job, queue_of(job))

    def _send(self, job: Job, queue: str) -> None:
        try:
            with correlation.span(f"publish {job.task}", "producer"), failpoints.around("broker.publish"):
                headers = _headers()
                self._app.send_task(job.task, args=[job.subject], queue=queue, headers=headers, ignore_result=True)
        except (OperationalError, OSError) as error:
            self._closed_until = time.monotonic() + BREAKER_SECONDS
            log.warning("publish_failed", task=job.task, subject=job.subject, error=type(error).__name__)


def _headers() -> dict[str, Any]:
    """Return what a job's message carries besides its id, for logs, metrics and traces only: no job depends on it."""
    found = correlation.request_id.get()
    headers = {PUBLISHED_AT: now().timestamp()} | ({REQUEST_ID: found} if found else {})
    return headers if correlation.tracer is None else headers | correlation.tracer.carrier()


def _transport_options(settings: Settings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "visibility_timeout": VISIBILITY_TIMEOUT_SECONDS,
        "unacked_restore_interval": 15,
        "unacked_restore_throttle": 1,
        "socket_timeout": 5,
        "socket_connect_timeout": 2,
        "health_check_interval": 10,
        "global_keyprefix": "aw:",
    }
    if not settings.broker.startswith("redis+socket"):
        options["socket_keepalive"] = True  # a unix socket has none
    return options

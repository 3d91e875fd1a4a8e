"""Celery tasks, one for each kind of job. Flower shows their names, which are those of users' commands."""

from collections.abc import Callable
from typing import Any

import structlog
from celery import Celery, Task

from shared import ids
from shared.observability import correlation, failpoints, metrics
from shared.observability.correlation import PUBLISHED_AT, REQUEST_ID
from shared.queue.jobs import (
    BootWarmSandbox,
    CancelStart,
    CheckSandbox,
    DeleteConversation,
    DeleteSandbox,
    DeliverMessages,
    Job,
    PauseSandbox,
    ReadLog,
    RefreshConversation,
    ResumeSandbox,
    StartConversation,
    StartSandbox,
    StopSandbox,
)
from worker.context import WorkerContext
from worker.conversations.refresh import refresh_conversation
from worker.conversations.start import start_conversation
from worker.sandboxes.container_logs import read_live
from worker.sandboxes.reconciler import reconcile

log = structlog.get_logger()

WORK: dict[type[Job], Callable[[WorkerContext, str], None]] = {
    StartSandbox: reconcile,
    BootWarmSandbox: reconcile,
    PauseSandbox: reconcile,
    StopSandbox: reconcile,
    ResumeSandbox: reconcile,
    DeleteSandbox: reconcile,
    CheckSandbox: reconcile,
    ReadLog: read_live,
    StartConversation: start_conversation,
    CancelStart: start_conversation,
    DeleteConversation: refresh_conversation,
    DeliverMessages: refresh_conversation,
    RefreshConversation: refresh_conversation,
}


class JobFailed(Exception):
    """An error in a job, by its type. Celery logs errors and sends them to Flower, and their texts may quote values."""


def register_tasks(app: Celery, context: WorkerContext) -> None:
    """Register a task for each kind of job with the application."""
    for job, work in WORK.items():
        # Not shared: another application in this process has another context.
        app.task(name=job.task, shared=False, bind=True)(_task(job.task, work, context))


def _task(name: str, work: Callable[[WorkerContext, str], None], context: WorkerContext) -> Callable[..., None]:
    def run(task: "Task[Any, Any]", row_id: str) -> None:
        if not ids.WRITTEN.fullmatch(row_id):
            log.warning("message_dropped", why=f"no row's id for {name}")
            return
        failpoints.begin(name)
        message = vars(task.request)
        # A job of the sweep belongs to no request, so it has the id of its message, which Flower shows.
        correlation.request_id.set(message.get(REQUEST_ID) or task.request.id or "")
        metrics.observe_job(name, message.get(PUBLISHED_AT))
        with correlation.span(name, "consumer", message, row=row_id):
            try:
                work(context, row_id)
            except Exception as error:  # noqa: BLE001 - whatever it is, its text is not logged
                raise JobFailed(type(error).__name__).with_traceback(error.__traceback__) from None

    return run

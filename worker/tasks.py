"""Celery tasks, one for each kind of job. Their names are users' commands, as Flower shows them."""

from collections.abc import Callable

from celery import Celery

from shared.observability import failpoints
from shared.queue.jobs import (
    CancelStart,
    CheckSandbox,
    DeleteConversation,
    DeleteSandbox,
    DeliverMessages,
    Job,
    PauseSandbox,
    RefreshConversation,
    ResumeSandbox,
    StartConversation,
    StartSandbox,
    StopSandbox,
    WarmSandbox,
)
from worker.context import WorkerContext
from worker.conversations.refresh import refresh_conversation
from worker.conversations.start import start_conversation
from worker.sandboxes.reconciler import reconcile

WORK: dict[type[Job], Callable[[WorkerContext, str], None]] = {
    StartSandbox: reconcile,
    WarmSandbox: reconcile,
    PauseSandbox: reconcile,
    StopSandbox: reconcile,
    ResumeSandbox: reconcile,
    DeleteSandbox: reconcile,
    CheckSandbox: reconcile,
    StartConversation: start_conversation,
    CancelStart: start_conversation,
    DeleteConversation: refresh_conversation,
    DeliverMessages: refresh_conversation,
    RefreshConversation: refresh_conversation,
}


def register_tasks(app: Celery, context: WorkerContext) -> None:
    """Register a task for each kind of job with the application."""
    for job, work in WORK.items():
        # Not shared: another application in this process has another context.
        app.task(name=job.task, shared=False)(_task(job.task, work, context))


def _task(name: str, work: Callable[[WorkerContext, str], None], context: WorkerContext) -> Callable[[str], None]:
    def run(row_id: str) -> None:
        failpoints.begin(name)
        work(context, row_id)

    return run

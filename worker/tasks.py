"""The Celery tasks: named for what people ask, so that Flower reads well; one line each."""

from collections.abc import Callable

from celery import Celery

from shared import failpoints
from shared.jobs import (
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
from worker.converge import converge
from worker.parts import Parts
from worker.refresh import refresh_conversation
from worker.starts import start_conversation

WORK: dict[type[Job], Callable[[Parts, str], None]] = {
    StartSandbox: converge,
    WarmSandbox: converge,
    PauseSandbox: converge,
    StopSandbox: converge,
    ResumeSandbox: converge,
    DeleteSandbox: converge,
    CheckSandbox: converge,
    StartConversation: start_conversation,
    CancelStart: start_conversation,
    DeleteConversation: refresh_conversation,
    DeliverMessages: refresh_conversation,
    RefreshConversation: refresh_conversation,
}


def register_tasks(app: Celery, parts: Parts) -> None:
    """Give the application a task for each job."""
    for job, work in WORK.items():
        # Not shared: another application of this process has other parts.
        app.task(name=job.task, shared=False)(_task(job.task, work, parts))


def _task(name: str, work: Callable[[Parts, str], None], parts: Parts) -> Callable[[str], None]:
    def carry_out(subject: str) -> None:
        failpoints.begin(name)
        work(parts, subject)

    return carry_out

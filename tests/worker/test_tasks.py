"""Each job has a task that carries it out."""

import celery
import pytest

from shared.models import Sandbox
from shared.queue.jobs import JOBS, StartSandbox
from shared.states import Status
from tests.factories import Person
from tests.worker.scenes import row, start
from worker import tasks
from worker.context import WorkerContext


@pytest.fixture
def app() -> celery.Celery:
    return celery.Celery("tests", set_as_current=False)


def test_each_job_has_its_task_and_each_task_its_job(context: WorkerContext, app: celery.Celery) -> None:
    tasks.register_tasks(app, context)
    ours = {name for name in app.tasks if not name.startswith("celery.")}
    assert ours == {job.task for job in JOBS}
    assert set(tasks.WORK) == set(JOBS)
    assert len(ours) == len(JOBS)


def test_each_task_does_its_own_work(
    context: WorkerContext, app: celery.Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str]] = []
    work = {job: lambda _context, subject, job=job: seen.append((job.task, subject)) for job in JOBS}
    monkeypatch.setattr(tasks, "WORK", work)
    tasks.register_tasks(app, context)
    for job in JOBS:
        app.tasks[job.task]("an id")
    assert seen == [(job.task, "an id") for job in JOBS]


def test_task_carries_its_wish_out(context: WorkerContext, user: Person, app: celery.Celery) -> None:
    tasks.register_tasks(app, context)
    sandbox_id = start(context, user)
    app.tasks[StartSandbox.task](sandbox_id)
    assert row(context, Sandbox, sandbox_id).status == Status.RUNNING

"""Each job has a task that carries it out."""

import celery
import pytest

from shared.jobs import JOBS, StartSandbox
from shared.models import Sandbox
from shared.states import Status
from tests.factories import Person
from tests.worker.scenes import row, start
from worker import tasks
from worker.parts import Parts


@pytest.fixture
def app() -> celery.Celery:
    return celery.Celery("tests", set_as_current=False)


def test_each_job_has_its_task_and_each_task_its_job(parts: Parts, app: celery.Celery) -> None:
    tasks.register_tasks(app, parts)
    ours = {name for name in app.tasks if not name.startswith("celery.")}
    assert ours == {job.task for job in JOBS}
    assert set(tasks.WORK) == set(JOBS)
    assert len(ours) == len(JOBS)


def test_each_task_does_its_own_work(parts: Parts, app: celery.Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str]] = []
    work = {job: lambda _parts, subject, job=job: seen.append((job.task, subject)) for job in JOBS}
    monkeypatch.setattr(tasks, "WORK", work)
    tasks.register_tasks(app, parts)
    for job in JOBS:
        app.tasks[job.task]("an id")
    assert seen == [(job.task, "an id") for job in JOBS]


def test_task_carries_its_wish_out(parts: Parts, user: Person, app: celery.Celery) -> None:
    tasks.register_tasks(app, parts)
    sandbox_id = start(parts, user)
    app.tasks[StartSandbox.task](sandbox_id)
    assert row(parts, Sandbox, sandbox_id).status == Status.RUNNING

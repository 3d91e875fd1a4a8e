"""Each kind of job has a Celery task."""

import celery
import pytest

from shared.models import Sandbox
from shared.queue.jobs import Job, StartSandbox
from shared.states import Status
from tests.factories import ApiUser
from tests.rows import all_rows
from tests.worker.scenarios import row, start
from worker import tasks
from worker.context import WorkerContext

JOBS = Job.__subclasses__()
ROW_ID = "0f" * 16


@pytest.fixture
def app() -> celery.Celery:
    return celery.Celery("tests", set_as_current=False)


def test_jobs_and_tasks_correspond(context: WorkerContext, app: celery.Celery) -> None:
    tasks.register_tasks(app, context)
    names = {name for name in app.tasks if not name.startswith("celery.")}
    assert names == {job.task for job in JOBS}
    assert set(tasks.WORK) == set(JOBS)
    assert len(names) == len(JOBS)


def test_each_task_calls_its_function(
    context: WorkerContext, app: celery.Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str]] = []
    work = {job: lambda _context, row_id, job=job: seen.append((job.task, row_id)) for job in JOBS}
    monkeypatch.setattr(tasks, "WORK", work)
    tasks.register_tasks(app, context)
    for job in JOBS:
        app.tasks[job.task](ROW_ID)
    assert seen == [(job.task, ROW_ID) for job in JOBS]


@pytest.mark.parametrize("text", ["", "an id", "0" * 31, f"{ROW_ID}\n", "\ud800", "\0" * 32, "../" * 10])
def test_job_without_a_row_s_id_is_dropped(
    context: WorkerContext, user: ApiUser, app: celery.Celery, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    tasks.register_tasks(app, context)
    start(context, user)
    before = all_rows(context.database)
    for job in JOBS:
        caplog.clear()
        app.tasks[job.task](text)
        [line] = caplog.messages
        assert ("message_dropped" in line, job.task in line) == (True, True)
    assert all_rows(context.database) == before


def test_failed_job_is_logged_without_the_text_of_its_error(
    context: WorkerContext, app: celery.Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_context: WorkerContext, row_id: str) -> None:
        raise ValueError(f"{row_id} is a secret")

    monkeypatch.setattr(tasks, "WORK", {StartSandbox: fail})
    tasks.register_tasks(app, context)
    result = app.tasks[StartSandbox.task].apply((ROW_ID,))
    assert "ValueError" in caplog.text
    assert "in fail" in str(result.traceback)
    assert "is a secret" not in caplog.text.replace('raise ValueError(f"{row_id} is a secret")', "")


def test_task_reconciles_its_sandbox(context: WorkerContext, user: ApiUser, app: celery.Celery) -> None:
    tasks.register_tasks(app, context)
    sandbox_id = start(context, user)
    app.tasks[StartSandbox.task](sandbox_id)
    assert row(context, Sandbox, sandbox_id).status == Status.RUNNING

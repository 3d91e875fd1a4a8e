"""The number of files that a job passes through: a reader who follows the job opens all of them.

The process has run such a job before, so that what a process computes only once is not counted.
"""

from celery import Celery
from fastapi.testclient import TestClient

from api.app import create_app
from api.request.context import Context
from shared.models import Sandbox
from shared.queue.jobs import Job, StartConversation, StartSandbox
from shared.states import Stage, Status
from tests.factories import NODE_ID, ApiUser
from tests.structure.trace import traced
from tests.worker import scenarios
from worker.context import WorkerContext
from worker.tasks import register_tasks

MAX_FILES_OF_SANDBOX_START = 30
MAX_FILES_OF_CONVERSATION_START = 36
MAX_FILES_FROM_REQUEST_TO_READY = 61
# The files `shared/db/postgresql.py` and `shared/sql/write_slots.py`.
MORE_ON_POSTGRESQL = 2


def test_start_of_a_sandbox_passes_few_files(context: WorkerContext, user: ApiUser) -> None:
    scenarios.running(context, user)
    sandbox_id = scenarios.start(context, user)
    files = files_of(context, StartSandbox(sandbox_id, NODE_ID))
    assert scenarios.row(context, Sandbox, sandbox_id).status == Status.RUNNING
    assert_few(context, files, MAX_FILES_OF_SANDBOX_START)


def test_start_of_a_conversation_passes_few_files(context: WorkerContext, user: ApiUser) -> None:
    scenarios.configure(context, user)
    sandbox_id = scenarios.running(context, user)
    files_of(context, StartConversation(scenarios.request_start(context, user, sandbox_id), NODE_ID))
    task_id = scenarios.request_start(context, user, sandbox_id, selected_repository="acme/app")
    files = files_of(context, StartConversation(task_id, NODE_ID))
    assert scenarios.task_of(context, task_id).stage == Stage.READY
    assert_few(context, files, MAX_FILES_OF_CONVERSATION_START)


def test_conversation_from_request_to_ready_passes_few_files(
    api_context: Context, context: WorkerContext, user: ApiUser
) -> None:
    scenarios.configure(context, user)
    with traced() as passed:
        # Not entered by `with`, so that the application's background tasks don't run.
        client = TestClient(create_app(api_context))
        for _ in range(2):
            passed.clear()
            accepted = client.post(
                "/api/v1/app-conversations", json={"initial_message": scenarios.MESSAGE}, headers=user.headers
            )
            scenarios.deliver(context)
        files = list(passed)
    assert scenarios.task_of(context, accepted.json()["id"]).stage == Stage.READY
    assert_few(context, files, MAX_FILES_FROM_REQUEST_TO_READY)


def files_of(context: WorkerContext, job: Job) -> list[str]:
    app = Celery("tests", set_as_current=False)
    register_tasks(app, context)
    with traced() as passed:
        app.tasks[job.task](job.subject)
    assert "worker/tasks.py" in passed, "the trace begins with the job"
    return list(passed)


def assert_few(context: WorkerContext, files: list[str], most: int) -> None:
    more = MORE_ON_POSTGRESQL if context.database.engine.dialect.name == "postgresql" else 0
    assert len(files) <= most + more, "\n".join(files)

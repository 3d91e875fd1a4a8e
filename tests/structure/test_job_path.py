"""The number of files that a job passes: a reader who follows it opens them all."""

from celery import Celery

from shared.models import Sandbox
from shared.queue.jobs import Job, StartConversation, StartSandbox
from shared.states import Stage, Status
from tests.factories import NODE_ID, Person
from tests.structure.trace import tracing
from tests.worker import scenes
from worker.context import WorkerContext
from worker.tasks import register_tasks

MAX_FILES_OF_SANDBOX_START = 34
MAX_FILES_OF_CONVERSATION_START = 41


def test_start_of_a_sandbox_passes_few_files(context: WorkerContext, user: Person) -> None:
    sandbox_id = scenes.start(context, user)
    files = files_of(context, StartSandbox(sandbox_id, NODE_ID))
    assert scenes.row(context, Sandbox, sandbox_id).status == Status.RUNNING
    assert_few(files, MAX_FILES_OF_SANDBOX_START)


def test_start_of_a_conversation_passes_few_files(context: WorkerContext, user: Person) -> None:
    scenes.configure(context, user)
    task_id = scenes.ask(context, user, scenes.running(context, user), selected_repository="acme/app")
    files = files_of(context, StartConversation(task_id, NODE_ID))
    assert scenes.task_of(context, task_id).stage == Stage.READY
    assert_few(files, MAX_FILES_OF_CONVERSATION_START)


def files_of(context: WorkerContext, job: Job) -> list[str]:
    app = Celery("tests", set_as_current=False)
    register_tasks(app, context)
    with tracing() as passed:
        app.tasks[job.task](job.subject)
    return list(passed)


def assert_few(files: list[str], most: int) -> None:
    assert files[0] == "worker/tasks.py", "the trace begins with the job"
    assert len(files) <= most, "\n".join(files)

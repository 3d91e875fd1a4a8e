"""Started conversations count towards their owner's quota, one time each, until they are deleted."""

import httpx
import pytest

from shared.changes import recorder as change_recorder
from shared.clock import now
from shared.models import StartTask
from shared.states import Stage
from tests.factories import ApiUser
from tests.fakes.agent_server import FakeAgentServer
from tests.worker.scenarios import change, configure, deliver, request_start, row
from worker.context import WorkerContext
from worker.conversations.start import start_conversation


@pytest.fixture(autouse=True)
def _settings(context: WorkerContext, user: ApiUser) -> None:
    configure(context, user)


def counted(context: WorkerContext, user: ApiUser) -> int:
    with context.database.reading() as session:
        return change_recorder.read_usage(session, user.id).conversations


def test_start_counts_once_however_often_it_is_retried(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    task_id = request_start(context, user, sandbox_id)
    server.refuse = {"create_conversation": httpx.Response(503)}
    start_conversation(context, task_id)
    assert counted(context, user) == 1
    server.refuse = {}
    change(context, StartTask, task_id, due_at=now())
    start_conversation(context, task_id)
    assert row(context, StartTask, task_id).stage == Stage.READY
    assert counted(context, user) == 1


def test_failed_start_is_no_longer_counted(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    server.refuse = {"create_conversation": httpx.Response(400)}
    task_id = request_start(context, user, sandbox_id)
    start_conversation(context, task_id)
    deliver(context)
    assert row(context, StartTask, task_id).stage == Stage.ERROR
    assert counted(context, user) == 0

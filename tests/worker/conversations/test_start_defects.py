"""Defects of V1's starts (wire contract, section 6) that workers must not have, by their numbers."""

import pytest

from shared.clock import now
from shared.models import Conversation, Sandbox, StartTask
from shared.states import FINAL_STAGES, Reason, Stage
from tests.doubles import RecordingPublisher
from tests.factories import ApiUser, make_conversation
from tests.fakes.agent_server import FakeAgentServer
from tests.worker.scenarios import (
    assert_at_rest,
    assert_failed,
    change,
    configure,
    deliver,
    request_start,
    row,
    task_of,
)
from worker.context import WorkerContext
from worker.conversations.refresh import refresh_conversation
from worker.conversations.start import start_conversation
from worker.loops.sweep import sweep


@pytest.fixture(autouse=True)
def _settings(context: WorkerContext, user: ApiUser) -> None:
    configure(context, user)


@pytest.mark.usefixtures("server")
def test_defect_02_start_whose_job_is_lost_is_found(
    context: WorkerContext, user: ApiUser, sandbox_id: str, publisher: RecordingPublisher
) -> None:
    task_id = request_start(context, user, sandbox_id)
    publisher.jobs.clear()
    change(context, StartTask, task_id, due_at=now())
    sweep(context)
    deliver(context)
    assert task_of(context, task_id).stage == Stage.READY


def test_defect_04_start_holds_no_connection_during_requests(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    held: list[int] = []
    server.before = lambda _method: held.append(context.database.engine.pool.checkedout())  # type: ignore[attr-defined]
    start_conversation(context, request_start(context, user, sandbox_id))
    assert len(held) > 2
    assert set(held) == {0}


def test_defect_22_sandbox_without_an_address_raises_no_assertion_error(
    context: WorkerContext, user: ApiUser, sandbox_id: str
) -> None:
    change(context, Sandbox, sandbox_id, exposed_urls=None)
    task_id = request_start(context, user, sandbox_id)
    for _ in range(context.settings.max_attempts):
        start_conversation(context, task_id)
        if task_of(context, task_id).stage not in FINAL_STAGES:
            change(context, StartTask, task_id, due_at=now())
    found = task_of(context, task_id)
    if found.stage not in FINAL_STAGES:  # it would wait for the address
        pytest.fail(f"{found.stage} {found.reason}")
    assert_failed(context, task_id, Reason.AGENT_SERVER_UNREACHABLE, "address")


def test_defect_36_start_loads_no_skills_itself(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    start_conversation(context, request_start(context, user, sandbox_id))
    assert server.calls.count("create_conversation") == 1
    assert not [call for call in server.calls if "skill" in call]


def test_defect_44_title_in_a_sandbox_without_an_address_waits(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    conversation = make_conversation(
        context.database, user, row(context, Sandbox, sandbox_id), due_at=now(), title="For now"
    )
    change(context, Sandbox, sandbox_id, exposed_urls=None)
    refresh_conversation(context, conversation.id)
    found = row(context, Conversation, conversation.id)
    assert_at_rest(found)
    assert (found.title, found.attempt, server.calls) == ("For now", 0, [])

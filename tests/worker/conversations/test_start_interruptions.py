"""Starts that are interrupted at every point: the worker dies, the sandbox is ready or deleted, a message is lost.

Points are the edges of each transaction and read, and of each request to the agent server. No test lists them: each
test moves on to the next point until a whole start has passed without reaching it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import httpx
import pytest

from shared.clock import after, now
from shared.leasing.limits import MAX_SECONDS
from shared.models import Conversation, Node, Sandbox, StartTask
from shared.states import Desired, Reason, Stage, Status
from tests.factories import ApiUser
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.engine import FakeEngine
from tests.worker.scenarios import (
    MESSAGE,
    HookedDatabase,
    another,
    assert_at_rest,
    assert_failed,
    change,
    configure,
    conversation_of,
    delete,
    deliver,
    hooked_context,
    request_start,
    row,
    server_of,
    task_of,
)
from worker.context import WorkerContext
from worker.conversations.start import start_conversation
from worker.sandboxes.reconciler import reconcile

# More points than a start has: a test that never passes the last one is wrong.
MAX_POINTS = 100


@pytest.fixture(autouse=True)
def _settings(context: WorkerContext, user: ApiUser) -> None:
    configure(context, user)
    # These tests take long, and nothing writes heartbeats during them.
    change(context, Node, context.settings.node, heartbeat_at=after(600))


def die() -> None:
    raise SystemExit


def nothing(_method: str) -> None:
    pass


def starts(context: WorkerContext, server: FakeAgentServer, act: Callable[[], None]) -> Iterator[Callable[[str], None]]:
    """Functions that each run a task and call `act` at the next point, until a start has passed without reaching it."""
    for at in range(MAX_POINTS):
        working, database = hooked_context(context, at, act)

        def walk(task_id: str, working: WorkerContext = working, database: HookedDatabase = database) -> None:
            server.before = server.after = lambda _method: database.point()
            try:
                start_conversation(working, task_id)
            finally:
                server.before = server.after = nothing

        yield walk
        if database.passed <= at:
            assert at > 25
            return
    raise AssertionError("a start has no end")


def assert_ready(context: WorkerContext, server: FakeAgentServer, task_id: str) -> None:
    task, found = task_of(context, task_id), conversation_of(context, task_id)
    assert task.stage == Stage.READY
    assert_at_rest(task)
    assert found
    assert found.listed
    conversation = server.conversations.pop(task.conversation_id)
    assert (len(conversation.messages), conversation.title) == (1, "A title")
    assert server.conversations == {}


def test_worker_that_dies_is_replaced(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    died = walks = 0
    for walk in starts(context, server, die):
        walks += 1
        task_id = request_start(context, user, sandbox_id, title="A title")
        try:
            walk(task_id)
        except SystemExit:
            died += 1
            change(context, StartTask, task_id, lease_until=now()) if task_of(context, task_id).lease_until else None
            start_conversation(another(context), task_id)
        assert_ready(context, server, task_id)
    assert died == walks - 1, "at every point of a start; the last walk passed none"


def test_worker_whose_lease_is_valid_is_not_replaced(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    task_id = request_start(context, user, sandbox_id, title="A title")
    server.before = lambda _method: die()
    with pytest.raises(SystemExit):
        start_conversation(context, task_id)
    calls = list(server.calls)
    start_conversation(another(context), task_id)
    assert server.calls == calls


def test_message_that_an_interrupted_create_lost_is_sent(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    task_id = begin_without_message(context, user, sandbox_id, server)
    assert server.get(task_of(context, task_id).conversation_id).messages == []
    start_conversation(context, task_id)
    assert server.calls.count("send_message") == 1
    assert_ready(context, server, task_id)


def test_message_that_may_still_be_delivered_is_not_sent(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    """A worker was killed, and the agent server still executes its request."""
    waiting = replace(context, settings=context.settings.model_copy(update={"first_message_timeout_seconds": 60}))
    task_id = begin_without_message(context, user, sandbox_id, server)
    start_conversation(waiting, task_id)
    task = task_of(context, task_id)
    assert (task.stage, task.attempt) == (Stage.STARTING_CONVERSATION, 1)
    assert task.due_at
    assert now() < task.due_at <= after(MAX_SECONDS)
    server.get(task.conversation_id).take(MESSAGE)
    change(context, StartTask, task_id, due_at=now())
    start_conversation(waiting, task_id)
    assert "send_message" not in server.calls
    assert_ready(context, server, task_id)


def test_message_is_not_awaited_until_a_clock_that_was_wrong_is_right(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    """The conversation's row was written by a worker whose clock was an hour ahead."""
    waiting = replace(context, settings=context.settings.model_copy(update={"first_message_timeout_seconds": 60}))
    task_id = begin_without_message(context, user, sandbox_id, server)
    change(context, Conversation, task_of(context, task_id).conversation_id, created_at=after(3600))
    start_conversation(waiting, task_id)
    assert server.calls.count("send_message") == 1
    assert_ready(context, server, task_id)


def begin_without_message(context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer) -> str:
    """Begin a start whose create is interrupted as soon as the conversation exists, and return its task's id."""
    task_id = request_start(context, user, sandbox_id, title="A title")
    server.loses_messages = True

    def break_off(method: str) -> None:
        if method == "create_conversation":
            server.after = nothing
            raise httpx.ReadTimeout("too long")

    server.after = break_off
    start_conversation(context, task_id)
    assert task_of(context, task_id).stage == Stage.STARTING_CONVERSATION
    return task_id


def test_conversation_started_without_a_message_gets_no_message(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    task_id = request_start(context, user, sandbox_id, initial_message=None)
    server.after = lambda method: die() if method == "create_conversation" else None
    with pytest.raises(SystemExit):
        start_conversation(context, task_id)
    server.after = nothing
    change(context, StartTask, task_id, lease_until=now())
    start_conversation(another(context), task_id)
    assert task_of(context, task_id).stage == Stage.READY
    assert server.get(task_of(context, task_id).conversation_id).messages == []


def test_sandbox_that_becomes_ready_while_its_task_is_read_is_used(context: WorkerContext, user: ApiUser) -> None:
    for at in range(MAX_POINTS):
        task_id = request_start(context, user)
        sandbox_id = str(task_of(context, task_id).sandbox_id)
        working, database = hooked_context(context, at, partial(reconcile, context, sandbox_id))
        start_conversation(working, task_id)
        if database.passed <= at:
            break
        deliver(context)
        task = task_of(context, task_id)
        assert task.stage == Stage.READY, f"at point {at}"
        assert_at_rest(task)
    assert at > 6


def test_sandbox_deleted_at_any_point_of_a_start_ends_the_start(
    context: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    ends: list[str] = []
    for at in range(MAX_POINTS):
        task_id = request_start(context, user)
        sandbox_id = str(task_of(context, task_id).sandbox_id)
        reconcile(context, sandbox_id)
        server = server_of(engine, sandbox_id)
        working, database = hooked_context(context, at, partial(delete, context, sandbox_id))
        # A point only before each request: after it, the response would be lost with the sandbox.
        server.before = refuse_without(database, engine)
        start_conversation(working, task_id)
        if database.passed <= at:
            break
        server.before = nothing
        deliver(context)
        start_conversation(context, task_id)  # as the sweep has it
        ends.append(task_of(context, task_id).stage)
        assert row(context, Sandbox, sandbox_id).status == Status.DELETED
        if ends[-1] == Stage.ERROR:
            assert_failed(context, task_id, Reason.SANDBOX_DELETED)
    assert ends.count(Stage.READY) + ends.count(Stage.ERROR) == len(ends)
    assert ends.count(Stage.ERROR) > 15
    # The sandbox existed when the conversation began: the conversation outlives it.
    assert ends == sorted(ends), "a delete after the last point has no effect at later points"


def refuse_without(database: HookedDatabase, engine: FakeEngine) -> Callable[[str], None]:
    def pass_point(_method: str) -> None:
        before = len(engine.containers)
        database.point()
        if len(engine.containers) < before:
            raise httpx.ReadError("the connection broke")

    return pass_point


def test_sandbox_whose_delete_is_requested_is_not_kept_by_a_start(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    task_id = request_start(context, user, sandbox_id)
    delete(context, sandbox_id)
    start_conversation(context, task_id)
    assert_failed(context, task_id, Reason.SANDBOX_DELETED)
    assert row(context, Sandbox, sandbox_id).desired == Desired.DELETED
    assert server.calls == ["find_running"]

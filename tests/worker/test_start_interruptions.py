"""Starts that are interrupted at every point: the worker dies, the sandbox settles or goes, a message is lost.

Points are the edges of each transaction and look, and of each request to the agent server. No test names them: each
goes on to the next one until a whole start has passed without it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import httpx
import pytest

from shared.clock import after, now
from shared.models import Conversation, Node, Sandbox, StartTask
from shared.states import Desired, Reason, Stage, Status
from tests.factories import Person
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.engine import FakeEngine
from tests.worker.scenes import (
    MESSAGE,
    PunctuatedDatabase,
    another,
    ask,
    assert_at_rest,
    assert_failed,
    change,
    configure,
    conversation_of,
    delete,
    deliver,
    punctuated,
    row,
    server_of,
    task_of,
)
from worker.converge import converge
from worker.parts import Parts
from worker.starts import start_conversation

# More than a start has: a test that never gets past the last one is wrong.
MOST_POINTS = 100


@pytest.fixture(autouse=True)
def _settings(parts: Parts, user: Person) -> None:
    configure(parts, user)
    # These tests take long, and nobody beats.
    change(parts, Node, parts.settings.node, heartbeat_at=after(600))


def die() -> None:
    raise SystemExit


def nothing(_method: str) -> None:
    pass


def starts(parts: Parts, server: FakeAgentServer, act: Callable[[], None]) -> Iterator[Callable[[str], None]]:
    """Functions that walk a task with `act` at the next point, until a start has passed without it."""
    for at in range(MOST_POINTS):
        working, database = punctuated(parts, at, act)

        def walk(task_id: str, working: Parts = working, database: PunctuatedDatabase = database) -> None:
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


def assert_ready_once(parts: Parts, server: FakeAgentServer, task_id: str) -> None:
    task, found = task_of(parts, task_id), conversation_of(parts, task_id)
    assert task.stage == Stage.READY
    assert_at_rest(task)
    assert found
    assert found.listed
    talk = server.conversations.pop(task.conversation_id)
    assert (len(talk.messages), talk.title) == (1, "A title")
    assert server.conversations == {}


def test_worker_that_dies_is_followed(parts: Parts, user: Person, sandbox_id: str, server: FakeAgentServer) -> None:
    died = walks = 0
    for walk in starts(parts, server, die):
        walks += 1
        task_id = ask(parts, user, sandbox_id, title="A title")
        try:
            walk(task_id)
        except SystemExit:
            died += 1
            change(parts, StartTask, task_id, lease_until=now()) if task_of(parts, task_id).lease_until else None
            start_conversation(another(parts), task_id)
        assert_ready_once(parts, server, task_id)
    assert died == walks - 1, "at every point of a start; the last walk passed none"


def test_worker_whose_lease_is_not_over_is_not_followed(
    parts: Parts, user: Person, sandbox_id: str, server: FakeAgentServer
) -> None:
    task_id = ask(parts, user, sandbox_id, title="A title")
    server.before = lambda _method: die()
    with pytest.raises(SystemExit):
        start_conversation(parts, task_id)
    calls = list(server.calls)
    start_conversation(another(parts), task_id)
    assert server.calls == calls


def test_message_that_a_broken_create_lost_is_sent_once(
    parts: Parts, user: Person, sandbox_id: str, server: FakeAgentServer
) -> None:
    task_id = begin_without_message(parts, user, sandbox_id, server)
    assert server.get(task_of(parts, task_id).conversation_id).messages == []
    start_conversation(parts, task_id)
    assert server.calls.count("send_message") == 1
    assert_ready_once(parts, server, task_id)


def test_message_that_may_be_on_its_way_is_not_sent_again(
    parts: Parts, user: Person, sandbox_id: str, server: FakeAgentServer
) -> None:
    """A worker was killed, and the agent server is still at what it was asked for."""
    patient = replace(parts, settings=parts.settings.model_copy(update={"first_message_seconds": 60}))
    task_id = begin_without_message(parts, user, sandbox_id, server)
    start_conversation(patient, task_id)
    task = task_of(parts, task_id)
    assert (task.stage, task.attempt) == (Stage.STARTING_CONVERSATION, 1)
    assert task.due_at
    assert now() < task.due_at <= after(60)
    server.get(task.conversation_id).take(MESSAGE)
    change(parts, StartTask, task_id, due_at=now())
    start_conversation(patient, task_id)
    assert "send_message" not in server.calls
    assert_ready_once(parts, server, task_id)


def test_message_is_not_awaited_until_a_clock_that_was_wrong_is_right(
    parts: Parts, user: Person, sandbox_id: str, server: FakeAgentServer
) -> None:
    """The conversation's row was made by a clock that was an hour ahead."""
    patient = replace(parts, settings=parts.settings.model_copy(update={"first_message_seconds": 60}))
    task_id = begin_without_message(parts, user, sandbox_id, server)
    change(parts, Conversation, task_of(parts, task_id).conversation_id, created_at=after(3600))
    start_conversation(patient, task_id)
    assert server.calls.count("send_message") == 1
    assert_ready_once(parts, server, task_id)


def begin_without_message(parts: Parts, user: Person, sandbox_id: str, server: FakeAgentServer) -> str:
    """A start whose create breaks off as soon as the conversation is there; its task's id."""
    task_id = ask(parts, user, sandbox_id, title="A title")
    server.loses_messages = True

    def break_off(method: str) -> None:
        if method == "create_conversation":
            server.after = nothing
            raise httpx.ReadTimeout("too long")

    server.after = break_off
    start_conversation(parts, task_id)
    assert task_of(parts, task_id).stage == Stage.STARTING_CONVERSATION
    return task_id


def test_conversation_that_begins_without_a_message_gets_none(
    parts: Parts, user: Person, sandbox_id: str, server: FakeAgentServer
) -> None:
    task_id = ask(parts, user, sandbox_id, initial_message=None)
    server.after = lambda method: die() if method == "create_conversation" else None
    with pytest.raises(SystemExit):
        start_conversation(parts, task_id)
    server.after = nothing
    change(parts, StartTask, task_id, lease_until=now())
    start_conversation(another(parts), task_id)
    assert task_of(parts, task_id).stage == Stage.READY
    assert server.get(task_of(parts, task_id).conversation_id).messages == []


def test_sandbox_that_settles_while_its_task_is_looked_at(parts: Parts, user: Person) -> None:
    for at in range(MOST_POINTS):
        task_id = ask(parts, user)
        sandbox_id = str(task_of(parts, task_id).sandbox_id)
        working, database = punctuated(parts, at, partial(converge, parts, sandbox_id))
        start_conversation(working, task_id)
        if database.passed <= at:
            break
        deliver(parts)
        task = task_of(parts, task_id)
        assert task.stage == Stage.READY, f"at point {at}"
        assert_at_rest(task)
    assert at > 6


def test_sandbox_that_is_deleted_meanwhile(parts: Parts, user: Person, engine: FakeEngine) -> None:
    ends: list[str] = []
    for at in range(MOST_POINTS):
        task_id = ask(parts, user)
        sandbox_id = str(task_of(parts, task_id).sandbox_id)
        converge(parts, sandbox_id)
        server = server_of(engine, sandbox_id)
        working, database = punctuated(parts, at, partial(delete, parts, sandbox_id))
        # Before a request only: after it, its answer would be lost with the sandbox.
        server.before = refuse_without(database, engine)
        start_conversation(working, task_id)
        if database.passed <= at:
            break
        server.before = nothing
        deliver(parts)
        start_conversation(parts, task_id)  # as the sweep has it
        ends.append(task_of(parts, task_id).stage)
        assert row(parts, Sandbox, sandbox_id).status == Status.DELETED
        if ends[-1] == Stage.ERROR:
            assert_failed(parts, task_id, Reason.SANDBOX_DELETED)
    assert ends.count(Stage.READY) + ends.count(Stage.ERROR) == len(ends)
    assert ends.count(Stage.ERROR) > 15
    # It was there when the conversation was begun: what became of it is known, and outlives it.
    assert ends == sorted(ends), "once too late is always too late"


def refuse_without(database: PunctuatedDatabase, engine: FakeEngine) -> Callable[[str], None]:
    def pass_point(_method: str) -> None:
        here = len(engine.containers)
        database.point()
        if len(engine.containers) < here:
            raise httpx.ReadError("the connection broke")

    return pass_point


def test_sandbox_that_is_wished_away_is_not_kept_by_a_start(
    parts: Parts, user: Person, sandbox_id: str, server: FakeAgentServer
) -> None:
    task_id = ask(parts, user, sandbox_id)
    delete(parts, sandbox_id)
    start_conversation(parts, task_id)
    assert_failed(parts, task_id, Reason.SANDBOX_DELETED)
    assert row(parts, Sandbox, sandbox_id).desired == Desired.DELETED
    assert server.calls == ["find_running"]

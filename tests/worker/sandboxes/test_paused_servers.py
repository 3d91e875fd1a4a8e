"""Starts and deliveries whose agent server falls silent during a request: they end as soon as the reason is known."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest

from shared.clock import after, now
from shared.conversations import start_tasks
from shared.leasing import waiters
from shared.models import Conversation, Node, Sandbox, StartTask
from shared.states import Desired, Reason, Stage, Status
from tests.factories import DOOR, ApiUser, make_conversation
from tests.fakes.agent_server import FakeAgentServer
from tests.services.asgi import serving
from tests.waiting import eventually
from tests.worker.conversations.message_delivery.messages import add_messages, assert_done, received_texts
from tests.worker.scenarios import (
    another,
    assert_failed,
    change,
    configure,
    conversation_of,
    hooked_context,
    request_start,
    row,
    set_desired,
    task_of,
)
from worker.agent_server import transport
from worker.agent_server.transport import open_client
from worker.context import WorkerContext
from worker.conversations.refresh import refresh_conversation
from worker.conversations.start import start_conversation

# The reads of a look at a request in progress: of the conversation and of its sandbox, each with two points.
POINTS_OF_A_LOOK = 4

Act = Callable[[WorkerContext, ApiUser, str, str], None]


class SilentServer:
    """A fake agent server over HTTP, which falls silent in one method until its client disconnects."""

    def __init__(self, server: FakeAgentServer) -> None:
        self.method = ""
        self.is_silent, self.was_abandoned, self.responds = threading.Event(), threading.Event(), threading.Event()
        self.server = server

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        response = self.server.respond(await _request(scope, receive))
        if self.method and self.server.calls[-1:] == [self.method]:
            self.is_silent.set()
            if await self._is_abandoned(receive):
                return
        await send({"type": "http.response.start", "status": response.status_code, "headers": []})
        await send({"type": "http.response.body", "body": response.content})

    async def _is_abandoned(self, receive: Any) -> bool:
        """Wait until the client disconnects or the test lets the server respond."""
        disconnect = asyncio.ensure_future(receive())
        while not disconnect.done() and not self.responds.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.01)
        if disconnect.done():
            self.was_abandoned.set()
            return True
        disconnect.cancel()
        return False


async def _request(scope: Any, receive: Any) -> httpx.Request:
    body, more = b"", True
    while more:
        part = await receive()
        body, more = body + part.get("body", b""), part.get("more_body", False)
    url = f"http://sandbox{scope['path']}?{scope['query_string'].decode()}"
    return httpx.Request(scope["method"], url, headers=scope["headers"], content=body)


@pytest.fixture(autouse=True)
def _settings(context: WorkerContext, user: ApiUser, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(context, user)
    change(context, Node, context.settings.node, heartbeat_at=after(600))
    monkeypatch.setattr(transport, "LOOK_SECONDS", 0.05)


@pytest.fixture
def silent_server(context: WorkerContext, sandbox_id: str, server: FakeAgentServer) -> Iterator[SilentServer]:
    app = SilentServer(server)
    with serving(app) as url:
        change(context, Sandbox, sandbox_id, exposed_urls=[{"name": "AGENT_SERVER", "url": url, "port": 8000}])
        yield app


def by_an_outsider(context: WorkerContext, _user: ApiUser, sandbox_id: str, _task_id: str) -> None:
    change(context, Sandbox, sandbox_id, status=Status.PAUSED, reason=Reason.PAUSED_OUTSIDE)


def by_a_pause(context: WorkerContext, _user: ApiUser, sandbox_id: str, _task_id: str) -> None:
    set_desired(context, sandbox_id, Desired.PAUSED)


def by_a_delete(context: WorkerContext, _user: ApiUser, sandbox_id: str, _task_id: str) -> None:
    set_desired(context, sandbox_id, Desired.DELETED)


def by_its_end(context: WorkerContext, _user: ApiUser, sandbox_id: str, _task_id: str) -> None:
    change(context, Sandbox, sandbox_id, status=Status.ERROR, reason=Reason.EXIT_CODE, detail="3")


def by_its_owner(context: WorkerContext, user: ApiUser, _sandbox_id: str, task_id: str) -> None:
    with context.database.transaction() as session:
        start_tasks.cancel(session, task_id, user.id, due_at=after(600))


ENDS: dict[Act, Reason] = {
    by_an_outsider: Reason.SANDBOX_PAUSED,
    by_a_pause: Reason.SANDBOX_PAUSED,
    by_a_delete: Reason.SANDBOX_DELETED,
    by_its_end: Reason.SANDBOX_FAILED,
    by_its_owner: Reason.CANCELLED,
}


@pytest.mark.parametrize("method", ["run_command", "create_conversation"])
@pytest.mark.parametrize("act", ENDS)
def test_start_ends_with_its_sandbox_or_its_cancellation(
    context: WorkerContext, user: ApiUser, sandbox_id: str, silent_server: SilentServer, act: Act, method: str
) -> None:
    silent_server.method = method
    task_id = request_start(context, user, sandbox_id)
    with open_client(DOOR) as http, ThreadPoolExecutor(1) as pool:
        walked = pool.submit(start_conversation, replace(context, http=http), task_id)
        assert silent_server.is_silent.wait(30)
        act(context, user, sandbox_id, task_id)
        assert silent_server.was_abandoned.wait(30)
        silent_server.method = ""
        walked.result(30)
    task = task_of(context, task_id)
    assert (task.stage, task.reason, task.secrets) == (Stage.ERROR, ENDS[act], None)


def test_start_whose_lease_is_lost_is_left_to_the_next_worker(
    context: WorkerContext, user: ApiUser, sandbox_id: str, silent_server: SilentServer, server: FakeAgentServer
) -> None:
    """The lease expired while this worker waited, and another worker has finished the start."""
    silent_server.method = "create_conversation"
    task_id = request_start(context, user, sandbox_id)
    with open_client(DOOR) as http, ThreadPoolExecutor(1) as pool:
        walked = pool.submit(start_conversation, replace(context, http=http), task_id)
        assert silent_server.is_silent.wait(30)
        silent_server.method = ""
        change(context, StartTask, task_id, lease_until=after(-1))
        start_conversation(replace(another(context), http=http), task_id)
        assert silent_server.was_abandoned.wait(30)
        walked.result(30)
    assert task_of(context, task_id).stage == Stage.READY
    assert len(server.conversations) == 1


def test_server_that_is_unpaused_continues(
    context: WorkerContext, user: ApiUser, sandbox_id: str, silent_server: SilentServer
) -> None:
    """A create that timed out may be executed later: the second refresh deletes its conversation."""
    silent_server.method = "create_conversation"
    task_id = request_start(context, user, sandbox_id)
    settings = context.settings.model_copy(update={"first_message_timeout_seconds": 5.0})
    with open_client(DOOR) as http, ThreadPoolExecutor(1) as pool:
        working = replace(context, http=http, settings=settings)
        walked = pool.submit(start_conversation, working, task_id)
        assert silent_server.is_silent.wait(30)
        by_an_outsider(context, user, sandbox_id, task_id)
        walked.result(30)
        silent_server.method = ""
        conversation = conversation_of(context, task_id)
        assert conversation is not None
        assert conversation.deleted_at is not None
        change(context, Sandbox, sandbox_id, status=Status.RUNNING, reason=None)
        _unpause(working, silent_server, conversation)
    assert_failed(context, task_id, Reason.SANDBOX_PAUSED)


def _unpause(context: WorkerContext, silent_server: SilentServer, conversation: Conversation) -> None:
    server = silent_server.server
    made = server.conversations.pop(conversation.id)
    change(context, Conversation, conversation.id, due_at=after(0))
    refresh_conversation(context, conversation.id)
    assert row(context, Conversation, conversation.id).attempt == 1
    server.conversations[conversation.id] = made  # the create ends
    change(context, Conversation, conversation.id, due_at=after(0))
    refresh_conversation(context, conversation.id)
    assert server.conversations == {}


def test_delivery_ends_when_its_sandbox_is_paused_and_is_completed_after_the_resume(
    context: WorkerContext, user: ApiUser, sandbox_id: str, silent_server: SilentServer, server: FakeAgentServer
) -> None:
    """Its lease would be held until the request timed out otherwise, although a frozen server can't respond."""
    conversation = make_conversation(context.database, user, row(context, Sandbox, sandbox_id), title_settled=True)
    fake = server.add(conversation.id)
    add_messages(context, user, conversation.id, "one")
    silent_server.method = "send_message"
    with open_client(DOOR) as http, ThreadPoolExecutor(1) as pool:
        working = replace(context, http=http)
        run = pool.submit(refresh_conversation, working, conversation.id)
        assert silent_server.is_silent.wait(30)
        by_an_outsider(context, user, sandbox_id, "")
        assert silent_server.was_abandoned.wait(15)
        run.result(30)
        found = row(context, Conversation, conversation.id)
        assert (found.awaits_sandbox, found.lease_owner, found.attempt) == (True, None, 0)
        silent_server.method = ""
        change(context, Sandbox, sandbox_id, status=Status.RUNNING, reason=None)
        with context.database.transaction() as session:  # as the write of RUNNING does
            assert waiters.enqueue_waiters(session, sandbox_id, now()).conversations == [conversation.id]
        refresh_conversation(working, conversation.id)
    assert received_texts(fake) == ["one"]
    assert_done(context, conversation.id)


def test_refresh_that_a_resume_would_not_repeat_continues_in_a_paused_sandbox(
    context: WorkerContext, user: ApiUser, sandbox_id: str, silent_server: SilentServer, server: FakeAgentServer
) -> None:
    """The conversation does not await the sandbox, so its resume would enqueue no other run."""
    sandbox = row(context, Sandbox, sandbox_id)
    conversation = make_conversation(context.database, user, sandbox, due_at=after(0))
    server.add(conversation.id).title = "A title"
    silent_server.method = "get_conversation"
    with open_client(DOOR) as http, ThreadPoolExecutor(1) as pool:
        working, database = hooked_context(replace(context, http=http), -1, lambda: None)
        run = pool.submit(refresh_conversation, working, conversation.id)
        assert silent_server.is_silent.wait(30)
        by_an_outsider(context, user, sandbox_id, "")
        looked = database.passed + 2 * POINTS_OF_A_LOOK
        assert eventually(lambda: silent_server.was_abandoned.is_set() or database.passed >= looked)
        silent_server.responds.set()
        run.result(30)
    assert row(context, Conversation, conversation.id).title == "A title"

"""Work without progress loses its row to another worker, and endless work times out."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from shared.agent_server.errors import AgentServerUnreachable
from shared.clock import after, now
from shared.conversations import deletion as conversation_deletion
from shared.models import Conversation, Sandbox
from shared.states import Desired, Reason, Status
from tests.factories import DOOR, ApiUser, make_conversation
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.engine import FakeEngine
from tests.services.hostile_server import answering, dripping, hostile
from tests.worker.scenarios import another, assert_failed, change, configure, request_start, row, set_desired
from worker.agent_server import door_names, transport
from worker.agent_server.client import AgentServer
from worker.agent_server.transport import open_client
from worker.context import WorkerContext
from worker.conversations import refresh
from worker.conversations.refresh import refresh_conversation
from worker.conversations.start import start_conversation
from worker.lease_renewer import STALL_SECONDS
from worker.sandboxes.reconciler import reconcile

# Max duration of a pause, resume or delete while a stalled worker holds the lease.
MAX_SECONDS = 35
CONVERSATION = "2" * 32


class Stall:
    """The first call of its kind, which does not return until the block ends."""

    def __init__(self) -> None:
        self.begun, self.over = threading.Event(), threading.Event()

    def __call__(self, _name: str) -> None:
        if not self.begun.is_set():
            self.begun.set()
            self.over.wait(30)


@contextmanager
def stalling(stall: Stall, work: Callable[[], object]) -> Iterator[Future[Any]]:
    """Stall a thread during its work; it continues after the block."""
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        try:
            assert stall.begun.wait(20)
            yield working
        finally:
            stall.over.set()


def expire(context: WorkerContext, table: Any, row_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Advance the clock until work without progress has lost its lease; the lease renewer keeps running."""
    change(context, table, row_id, lease_until=after(5))
    began = time.monotonic()
    monkeypatch.setattr("worker.lease_renewer.monotonic", lambda: began + STALL_SECONDS + 1)
    context.renewer.renew_all()
    assert row(context, table, row_id).lease_until < after(6)
    change(context, table, row_id, lease_until=after(-1))


def delete_conversation(context: WorkerContext, user: ApiUser) -> None:
    """Delete the conversation like the API does."""
    with context.database.transaction() as session:
        conversation_deletion.delete_conversation(session, CONVERSATION, user.id, due_at=now())


@pytest.fixture
def conversation(context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer) -> Conversation:
    server.add(CONVERSATION)
    return make_conversation(context.database, user, row(context, Sandbox, sandbox_id), id=CONVERSATION, due_at=now())


def test_lease_without_progress_ends_soon(context: WorkerContext) -> None:
    assert STALL_SECONDS + context.renewer.seconds <= MAX_SECONDS


@pytest.mark.usefixtures("conversation")
def test_conversation_is_deleted_by_another_worker(
    context: WorkerContext, user: ApiUser, server: FakeAgentServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.before = stall = Stall()
    with stalling(stall, lambda: refresh_conversation(context, CONVERSATION)) as stalled:
        delete_conversation(context, user)
        expire(context, Conversation, CONVERSATION, monkeypatch)
        refresh_conversation(another(context), CONVERSATION)
        assert server.conversations == {}
        before = row(context, Conversation, CONVERSATION)
    stalled.result()
    assert row(context, Conversation, CONVERSATION) == before


def test_sandbox_is_deleted_by_another_worker(
    context: WorkerContext, engine: FakeEngine, sandbox_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stall = Stall()
    engine.before = {"pause": stall}
    set_desired(context, sandbox_id, Desired.PAUSED)
    with stalling(stall, lambda: reconcile(context, sandbox_id)) as stalled:
        set_desired(context, sandbox_id, Desired.DELETED)
        expire(context, Sandbox, sandbox_id, monkeypatch)
        reconcile(another(context), sandbox_id)
        assert row(context, Sandbox, sandbox_id).status == Status.DELETED
    stalled.result()
    assert row(context, Sandbox, sandbox_id).status == Status.DELETED


# What the calls of an engine may take in seconds, if a container has 60 s to end.
SLOW = {"unpause": 9, "pause": 9, "stop": 69, "read_log": 9, "remove": 69, "put_file": 15, "start": 15}


@pytest.mark.parametrize("desired", [Desired.PAUSED, Desired.STOPPED, Desired.DELETED, Desired.RUNNING])
def test_lease_lasts_while_each_call_ends_in_time(
    context: WorkerContext, engine: FakeEngine, sandbox_id: str, desired: Desired, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a second run would start beside the first, and each would lose its lease at the same point."""
    context = replace(context, settings=context.settings.model_copy(update={"stop_seconds": 60}))
    if desired == Desired.RUNNING:
        set_desired(context, sandbox_id, Desired.STOPPED)
        reconcile(context, sandbox_id)
    passed, renewed = [time.monotonic()], []
    monkeypatch.setattr("worker.lease_renewer.monotonic", lambda: sum(passed))

    def take_long(verb: str, _name: str) -> None:
        passed.append(SLOW[verb])
        change(context, Sandbox, sandbox_id, lease_until=after(5))
        context.renewer.renew_all()
        until = row(context, Sandbox, sandbox_id).lease_until
        renewed.append((verb, until is not None and until > after(6)))

    engine.before = {verb: partial(take_long, verb) for verb in SLOW}
    set_desired(context, sandbox_id, desired)
    reconcile(context, sandbox_id)
    assert renewed
    assert [verb for verb, lasts in renewed if not lasts] == []
    assert row(context, Sandbox, sandbox_id).observed_generation == row(context, Sandbox, sandbox_id).generation


@pytest.fixture
def http_context(context: WorkerContext, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerContext]:
    """Context of a worker that calls agent servers over HTTP."""
    monkeypatch.setattr(transport, "LOOK_SECONDS", 0.05)
    with open_client(DOOR) as http:
        yield replace(context, http=http)


def move(context: WorkerContext, sandbox_id: str, url: str) -> None:
    """Move the sandbox's agent server to another URL."""
    change(context, Sandbox, sandbox_id, exposed_urls=[{"name": "AGENT_SERVER", "url": url, "port": 8000}])


@pytest.mark.usefixtures("conversation")
def test_work_without_an_end_times_out(
    http_context: WorkerContext, sandbox_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout is for all requests together: the server returns each of an endless number of pages immediately."""
    monkeypatch.setattr(refresh, "RUN_SECONDS", 0.5)
    monkeypatch.setattr("shared.agent_server.limits.MAX_MESSAGES", 10**9)
    monkeypatch.setattr(
        "worker.conversations.refresh._update_title", lambda _context, server, one: list(server.list_messages(one.id))
    )
    with hostile(answering({"items": [], "next_page_id": "more"})) as server:
        move(http_context, sandbox_id, server.url)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(refresh_conversation, http_context, CONVERSATION).result(20)
    found = row(http_context, Conversation, CONVERSATION)
    assert (found.attempt, found.lease_until, found.due_at is not None) == (0, None, True)


def test_start_that_uses_up_its_time_fails(
    http_context: WorkerContext, user: ApiUser, sandbox_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each response comes in time, but all of them together exceed the timeout of the run."""
    monkeypatch.setattr("worker.conversations.start.RUN_SECONDS", 0.5)
    configure(http_context, user)
    with hostile(answering({"exit_code": 0})) as server:
        slow = server.mode
        server.mode = lambda ended: (ended.wait(0.2), slow(ended))[1]
        move(http_context, sandbox_id, server.url)
        task_id = request_start(http_context, user, sandbox_id)
        start_conversation(http_context, task_id)
    task = assert_failed(http_context, task_id, Reason.AGENT_SERVER_UNREACHABLE, "no response")
    assert task.attempt == 0


@pytest.mark.usefixtures("conversation")
def test_deletion_ends_the_work_in_progress(http_context: WorkerContext, user: ApiUser, sandbox_id: str) -> None:
    """The next run begins immediately, and deletes the conversation at the agent server."""
    with hostile(dripping) as dripper, ThreadPoolExecutor(1) as pool:
        move(http_context, sandbox_id, dripper.url)
        working = pool.submit(refresh_conversation, http_context, CONVERSATION)
        while not dripper.requested:
            time.sleep(0.01)
        dripper.mode = answering({})
        delete_conversation(http_context, user)
        working.result(10)
    assert any(request.startswith(b"DELETE") for request in dripper.requested)
    assert row(http_context, Conversation, CONVERSATION).due_at is None


def test_server_that_accepts_no_connections_times_out_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """No progress is marked while a connection is opened, so the connect timeout is short for every request."""
    monkeypatch.setattr(door_names, "CONNECT_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as queue, open_client(DOOR) as http:
        for _ in range(4):
            waiting = queue.enter_context(socket.socket())
            waiting.settimeout(0)
            waiting.connect_ex(listener.getsockname())
        began = time.monotonic()
        with pytest.raises(AgentServerUnreachable, match="ConnectTimeout"):
            AgentServer(f"http://127.0.0.1:{listener.getsockname()[1]}", "key", http).upload("/a", b"")
        assert time.monotonic() - began < 10

"""A turn that makes no progress loses its row to another worker, and one that is kept busy ends."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from shared.clock import after, now
from shared.conversations import deletion as conversation_deletion
from shared.models import Conversation, Sandbox
from shared.states import Desired, Status
from tests.factories import Person, make_conversation
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.engine import FakeEngine
from tests.services.hostile_server import answering, dripping, hostile
from tests.worker.scenes import another, change, row, wish
from worker.agent_server import cancellable_transport
from worker.agent_server.client import AgentServer
from worker.agent_server.errors import AgentServerUnreachable
from worker.agent_server.exchange import open_client
from worker.context import WorkerContext
from worker.conversations import refresh
from worker.conversations.refresh import refresh_conversation
from worker.leasing.lease_renewer import STALL_SECONDS
from worker.sandboxes.reconciler import reconcile

# Of a pause, resume or delete that finds the row leased by a worker that stands still.
MAX_SECONDS = 35
CONVERSATION = "2" * 32


class Standstill:
    """A call that does not return until the block ends: the first one of its kind."""

    def __init__(self) -> None:
        self.begun, self.over = threading.Event(), threading.Event()

    def __call__(self, _name: str) -> None:
        if not self.begun.is_set():
            self.begun.set()
            self.over.wait(30)


@contextmanager
def standing_still(standstill: Standstill, work: Callable[[], object]) -> Iterator[Future[Any]]:
    """Have a thread stand still in the midst of its work; it goes on after the block."""
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        try:
            assert standstill.begun.wait(20)
            yield working
        finally:
            standstill.over.set()


def expire(context: WorkerContext, table: Any, row_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let so much time pass that a turn without progress has lost its lease; the keeper goes on renewing."""
    change(context, table, row_id, lease_until=after(5))
    began = time.monotonic()
    monkeypatch.setattr("worker.leasing.lease_renewer.monotonic", lambda: began + STALL_SECONDS + 1)
    context.renewer.renew_all()
    assert row(context, table, row_id).lease_until < after(6)
    change(context, table, row_id, lease_until=after(-1))


def delete_conversation(context: WorkerContext, user: Person) -> None:
    """Delete it as the API does."""
    with context.database.transaction() as session:
        conversation_deletion.delete_conversation(session, CONVERSATION, user.id, due_at=now())


@pytest.fixture
def conversation(context: WorkerContext, user: Person, sandbox_id: str, server: FakeAgentServer) -> Conversation:
    server.add(CONVERSATION)
    return make_conversation(context.database, user, row(context, Sandbox, sandbox_id), id=CONVERSATION, due_at=now())


def test_a_lease_is_not_held_for_long_without_progress(context: WorkerContext) -> None:
    assert STALL_SECONDS + context.renewer.seconds <= MAX_SECONDS


@pytest.mark.usefixtures("conversation")
def test_a_conversation_is_deleted_by_another_worker(
    context: WorkerContext, user: Person, server: FakeAgentServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.before = standstill = Standstill()
    with standing_still(standstill, lambda: refresh_conversation(context, CONVERSATION)) as stalled:
        delete_conversation(context, user)
        expire(context, Conversation, CONVERSATION, monkeypatch)
        refresh_conversation(another(context), CONVERSATION)
        assert server.conversations == {}
        before = row(context, Conversation, CONVERSATION)
    stalled.result()
    assert row(context, Conversation, CONVERSATION) == before


def test_a_sandbox_is_deleted_by_another_worker(
    context: WorkerContext, engine: FakeEngine, sandbox_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    standstill = Standstill()
    engine.before = {"freeze": standstill}
    wish(context, sandbox_id, Desired.PAUSED)
    with standing_still(standstill, lambda: reconcile(context, sandbox_id)) as stalled:
        wish(context, sandbox_id, Desired.DELETED)
        expire(context, Sandbox, sandbox_id, monkeypatch)
        reconcile(another(context), sandbox_id)
        assert row(context, Sandbox, sandbox_id).status == Status.DELETED
    stalled.result()
    assert row(context, Sandbox, sandbox_id).status == Status.DELETED


@pytest.fixture
def asking(context: WorkerContext, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerContext]:
    """A worker that asks agent servers over HTTP."""
    monkeypatch.setattr(cancellable_transport, "LOOK_SECONDS", 0.05)
    with open_client() as http:
        yield replace(context, http=http)


def move(context: WorkerContext, sandbox_id: str, url: str) -> None:
    """Have the sandbox's agent server at another URL."""
    change(context, Sandbox, sandbox_id, exposed_urls=[{"name": "AGENT_SERVER", "url": url, "port": 8000}])


@pytest.mark.usefixtures("conversation")
def test_a_turn_that_is_kept_busy_ends(asking: WorkerContext, sandbox_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its timeout is for all requests together: each of an endless number of pages is answered at once."""
    monkeypatch.setattr(refresh, "TURN_SECONDS", 0.5)
    monkeypatch.setattr("worker.agent_server.client.MAX_MESSAGES", 10**9)
    monkeypatch.setattr(
        "worker.conversations.refresh._update_title", lambda _context, server, one: list(server.list_messages(one.id))
    )
    with hostile(answering({"items": [], "next_page_id": "more"})) as server:
        move(asking, sandbox_id, server.url)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(refresh_conversation, asking, CONVERSATION).result(20)
    found = row(asking, Conversation, CONVERSATION)
    assert (found.attempt, found.lease_until, found.due_at is not None) == (0, None, True)


@pytest.mark.usefixtures("conversation")
def test_a_deletion_ends_the_turn_that_is_under_way(asking: WorkerContext, user: Person, sandbox_id: str) -> None:
    """The next one begins at once, and asks the agent server to forget it."""
    with hostile(dripping) as dripper, ThreadPoolExecutor(1) as pool:
        move(asking, sandbox_id, dripper.url)
        working = pool.submit(refresh_conversation, asking, CONVERSATION)
        while not dripper.asked:
            time.sleep(0.01)
        dripper.mode = answering({})
        delete_conversation(asking, user)
        working.result(10)
    assert any(request.startswith(b"DELETE") for request in dripper.asked)
    assert row(asking, Conversation, CONVERSATION).due_at is None


def test_a_server_that_takes_no_connections_is_left_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing shows progress while a connection is opened, whatever the request's own timeout."""
    monkeypatch.setattr(cancellable_transport, "CONNECT_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as queue, open_client() as http:
        for _ in range(4):
            waiting = queue.enter_context(socket.socket())
            waiting.settimeout(0)
            waiting.connect_ex(listener.getsockname())
        began = time.monotonic()
        with pytest.raises(AgentServerUnreachable, match="ConnectTimeout"):
            AgentServer(f"http://127.0.0.1:{listener.getsockname()[1]}", "key", http).upload("/a", b"")
        assert time.monotonic() - began < 10

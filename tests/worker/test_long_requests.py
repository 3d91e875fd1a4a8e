"""A run keeps its lease during a request to an agent server that takes longer than work without progress may take."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from shared.clock import after, now
from shared.conversations import deletion as conversation_deletion
from shared.models import Conversation, Sandbox, StartTask
from shared.states import Desired, Reason
from tests.factories import DOOR, ApiUser, make_conversation
from tests.services.hostile_server import HostileServer, answering, dripping, hostile
from tests.waiting import eventually
from tests.worker.scenarios import assert_failed, change, configure, request_start, row, set_desired
from worker.agent_server import transport
from worker.agent_server.transport import open_client
from worker.context import WorkerContext
from worker.conversations.refresh import refresh_conversation
from worker.conversations.start import start_conversation
from worker.lease_renewer import STALL_SECONDS


@pytest.fixture
def http_context(context: WorkerContext, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerContext]:
    """Context of a worker that calls agent servers over HTTP."""
    monkeypatch.setattr(transport, "LOOK_SECONDS", 0.05)
    with open_client(DOOR) as http:
        yield replace(context, http=http)


@contextmanager
def during_a_request(context: WorkerContext, sandbox_id: str, work: Callable[[], None]) -> Iterator[HostileServer]:
    """Run `work` until the sandbox's agent server has got a request, whose response does not end."""
    with ThreadPoolExecutor(1) as pool, hostile(dripping) as server:
        urls = [{"name": "AGENT_SERVER", "url": server.url, "port": 8000}]
        change(context, Sandbox, sandbox_id, exposed_urls=urls)
        working = pool.submit(work)
        eventually(lambda: server.requested)
        yield server
        working.result(20)


def assert_renewed(context: WorkerContext, table: Any, row_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Advance the clock so far that only progress since then keeps the lease, and renew it."""
    mark, began, marked = context.renewer.mark_progress, time.monotonic(), threading.Semaphore(0)

    def mark_and_signal(*held: Any) -> None:
        mark(*held)
        marked.release()

    monkeypatch.setattr(context.renewer, "mark_progress", mark_and_signal)
    change(context, table, row_id, lease_until=after(5))
    monkeypatch.setattr("worker.lease_renewer.monotonic", lambda: began + STALL_SECONDS + 1)
    while marked.acquire(blocking=False):
        pass
    for _ in range(2):  # the first may have read the clock before it was advanced
        assert marked.acquire(timeout=20)
    context.renewer.renew_all()
    assert row(context, table, row_id).lease_until > after(6)


def test_start_keeps_its_lease(
    http_context: WorkerContext, user: ApiUser, sandbox_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(http_context, user)
    task_id = request_start(http_context, user, sandbox_id)
    with during_a_request(http_context, sandbox_id, lambda: start_conversation(http_context, task_id)):
        assert_renewed(http_context, StartTask, task_id, monkeypatch)
        set_desired(http_context, sandbox_id, Desired.DELETED)
    assert_failed(http_context, task_id, Reason.SANDBOX_DELETED)


def test_refresh_keeps_its_lease(
    http_context: WorkerContext, user: ApiUser, sandbox_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = make_conversation(http_context.database, user, row(http_context, Sandbox, sandbox_id), due_at=now())
    with during_a_request(
        http_context, sandbox_id, lambda: refresh_conversation(http_context, conversation.id)
    ) as server:
        assert_renewed(http_context, Conversation, conversation.id, monkeypatch)
        server.mode = answering({})
        with http_context.database.transaction() as session:
            conversation_deletion.delete_conversation(session, conversation.id, user.id, due_at=now())

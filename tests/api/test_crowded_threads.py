"""More slow requests of one user than there are threads: requests of other users still get responses."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import THREADS
from api.limits.process import LIST_THREADS_OF_USER, THREADS_OF_USER, THREADS_OF_WEBHOOKS
from shared.conversations import lists
from shared.db.database import Database
from shared.errors import Conflict
from shared.models import Conversation, Sandbox
from shared.redaction import Redact, redacting
from shared.sql.pagination import Page
from tests.factories import ApiUser, session_key_of
from tests.waiting import eventually

OTHERS = "/api/keys"


def test_slow_reads_of_one_user_leave_threads_for_others(
    client: TestClient,
    user: ApiUser,
    other_user: ApiUser,
    conversation: Conversation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A page of large events takes half a second, and hundreds may be requested at once."""
    begun, released = [], threading.Event()

    def read_slowly(*arguments: Any, **_options: Any) -> Page[Any]:
        begun.append(arguments)
        released.wait(60)
        return Page([], None)

    monkeypatch.setattr("shared.conversations.events.search", read_slowly)
    path = f"/api/v1/conversation/{conversation.id}/events/search"
    with ThreadPoolExecutor(THREADS + 2) as pool:
        try:
            slow = [pool.submit(client.get, path, headers=user.headers) for _ in range(THREADS + 1)]
            assert eventually(lambda: len(begun) >= THREADS_OF_USER)
            other = pool.submit(client.get, OTHERS, headers=other_user.headers)
            assert other.result(timeout=20).status_code == 200
            assert len(begun) == THREADS_OF_USER
        finally:
            released.set()
        assert {response.result().status_code for response in slow} == {200}


@pytest.mark.parametrize(
    ("path", "work"),
    [
        ("/api/v1/app-conversations", "api.routes.v1.conversations.start"),
        ("/api/v1/sandboxes", "api.routes.v1.sandboxes._start"),
        ("/api/conversations", "api.routes.v1.conversations.start"),
    ],
)
def test_slow_starts_of_one_user_leave_threads_for_others(
    client: TestClient, user: ApiUser, other_user: ApiUser, monkeypatch: pytest.MonkeyPatch, path: str, work: str
) -> None:
    """A start waits for locks. Its route is asynchronous: only parts of it run in threads."""
    begun, released = [], threading.Event()

    def start_slowly(*arguments: Any) -> Any:
        begun.append(arguments)
        released.wait(60)
        raise Conflict("no")

    monkeypatch.setattr(work, start_slowly)
    with ThreadPoolExecutor(THREADS + 2) as pool:
        try:
            slow = [pool.submit(client.post, path, json={}, headers=user.headers) for _ in range(THREADS + 1)]
            assert eventually(lambda: len(begun) >= THREADS_OF_USER)
            other = pool.submit(client.get, OTHERS, headers=other_user.headers)
            assert other.result(timeout=20).status_code == 200
            assert len(begun) == THREADS_OF_USER
        finally:
            released.set()
        assert {response.result().status_code for response in slow} == {409}


def test_slow_lists_of_one_user_leave_a_thread_for_others(
    client: TestClient, user: ApiUser, other_user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, released, search = [], threading.Event(), lists.search

    def search_slowly(database: Database, owner_id: str, *arguments: Any, **options: Any) -> Page[Any]:
        if owner_id == user.id:
            begun.append(arguments)
            released.wait(60)
        return search(database, owner_id, *arguments, **options)

    monkeypatch.setattr("shared.conversations.lists.search", search_slowly)
    path = "/api/v1/app-conversations/search"
    with ThreadPoolExecutor(8) as pool:
        try:
            slow = [pool.submit(client.get, path, headers=user.headers) for _ in range(6)]
            assert eventually(lambda: len(begun) >= LIST_THREADS_OF_USER)
            other = pool.submit(client.get, path, headers=other_user.headers)
            assert other.result(timeout=20).status_code == 200
            assert len(begun) == LIST_THREADS_OF_USER
        finally:
            released.set()
        assert {response.result().status_code for response in slow} == {200}


def test_slow_webhooks_of_one_user_leave_threads_for_others(
    client: TestClient,
    user: ApiUser,
    other_user: ApiUser,
    sandbox: Sandbox,
    conversation: Conversation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Secrets in an error may take a second to find. The user's own requests are not delayed, either."""
    begun, released = [], threading.Event()

    def read_slowly(*arguments: Any) -> Redact:
        begun.append(arguments)
        released.wait(60)
        return redacting([])

    monkeypatch.setattr("api.routes.v1.webhooks.redact_for", read_slowly)
    event = {"id": "one", "kind": "ConversationErrorEvent", "timestamp": "2026-01-02T03:04:05", "detail": "failed"}
    path, key = f"/api/v1/webhooks/events/{conversation.id}", {"X-Session-API-Key": session_key_of(sandbox)}
    with ThreadPoolExecutor(THREADS + 3) as pool:
        try:
            slow = [pool.submit(client.post, path, json=[event], headers=key) for _ in range(THREADS + 1)]
            assert eventually(lambda: len(begun) >= THREADS_OF_WEBHOOKS)
            others = [pool.submit(client.get, OTHERS, headers=one.headers) for one in (user, other_user)]
            assert [other.result(timeout=20).status_code for other in others] == [200, 200]
            assert len(begun) == THREADS_OF_WEBHOOKS
        finally:
            released.set()
        assert {response.result().status_code for response in slow} == {200}

"""More slow requests of one user than there are threads: requests of other users still get responses."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
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


class SlowWork:
    """The work of requests, which runs until others have had their responses."""

    def __init__(self) -> None:
        self._begun: list[None] = []
        self._released = threading.Event()

    def run(self) -> None:
        self._begun.append(None)
        self._released.wait(60)

    def crowd(
        self, slow: Callable[[], httpx.Response], others: list[Callable[[], httpx.Response]], *, count: int, limit: int
    ) -> set[int]:
        """Send `count` slow requests, of which only `limit` run at a time, and then the others, which succeed.

        Returns:
            The statuses of the slow requests.
        """
        with ThreadPoolExecutor(count + len(others)) as pool:
            try:
                sent = [pool.submit(slow) for _ in range(count)]
                assert eventually(lambda: len(self._begun) >= limit)
                responses = [pool.submit(other) for other in others]
                assert {response.result(timeout=20).status_code for response in responses} == {200}
                assert len(self._begun) == limit
            finally:
                self._released.set()
            return {response.result().status_code for response in sent}


@pytest.fixture
def work() -> SlowWork:
    return SlowWork()


def test_slow_reads_of_one_user_leave_threads_for_others(
    client: TestClient,
    user: ApiUser,
    other_user: ApiUser,
    conversation: Conversation,
    monkeypatch: pytest.MonkeyPatch,
    work: SlowWork,
) -> None:
    """A page of large events takes half a second, and hundreds may be requested at once."""

    def read_slowly(*_arguments: Any, **_options: Any) -> Page[Any]:
        work.run()
        return Page([], None)

    monkeypatch.setattr("shared.conversations.events.search", read_slowly)
    slow = partial(client.get, f"/api/v1/conversation/{conversation.id}/events/search", headers=user.headers)
    other = partial(client.get, OTHERS, headers=other_user.headers)
    assert work.crowd(slow, [other], count=THREADS + 1, limit=THREADS_OF_USER) == {200}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/api/v1/app-conversations", "api.routes.v1.conversations.start"),
        ("/api/v1/sandboxes", "api.routes.v1.sandboxes._start"),
        ("/api/conversations", "api.routes.v1.conversations.start"),
    ],
)
def test_slow_starts_of_one_user_leave_threads_for_others(
    client: TestClient,
    user: ApiUser,
    other_user: ApiUser,
    monkeypatch: pytest.MonkeyPatch,
    work: SlowWork,
    path: str,
    name: str,
) -> None:
    """A start waits for locks. Its route is asynchronous: only parts of it run in threads."""

    def start_slowly(*_arguments: Any) -> Any:
        work.run()
        raise Conflict("no")

    monkeypatch.setattr(name, start_slowly)
    slow = partial(client.post, path, json={}, headers=user.headers)
    other = partial(client.get, OTHERS, headers=other_user.headers)
    assert work.crowd(slow, [other], count=THREADS + 1, limit=THREADS_OF_USER) == {409}


def test_slow_lists_of_one_user_leave_a_thread_for_others(
    client: TestClient, user: ApiUser, other_user: ApiUser, monkeypatch: pytest.MonkeyPatch, work: SlowWork
) -> None:
    search = lists.search

    def search_slowly(database: Database, owner_id: str, *arguments: Any, **options: Any) -> Page[Any]:
        if owner_id == user.id:
            work.run()
        return search(database, owner_id, *arguments, **options)

    monkeypatch.setattr("shared.conversations.lists.search", search_slowly)
    slow, other = (
        partial(client.get, "/api/v1/app-conversations/search", headers=each.headers) for each in (user, other_user)
    )
    assert work.crowd(slow, [other], count=6, limit=LIST_THREADS_OF_USER) == {200}


def test_slow_webhooks_of_one_user_leave_threads_for_others(
    client: TestClient,
    user: ApiUser,
    other_user: ApiUser,
    sandbox: Sandbox,
    conversation: Conversation,
    monkeypatch: pytest.MonkeyPatch,
    work: SlowWork,
) -> None:
    """Secrets in an error may take a second to find. The user's own requests are not delayed, either."""

    def read_slowly(*_arguments: Any) -> Redact:
        work.run()
        return redacting([])

    monkeypatch.setattr("api.routes.v1.webhooks.redact_for", read_slowly)
    event = {"id": "one", "kind": "ConversationErrorEvent", "timestamp": "2026-01-02T03:04:05", "detail": "failed"}
    path, key = f"/api/v1/webhooks/events/{conversation.id}", {"X-Session-API-Key": session_key_of(sandbox)}
    slow = partial(client.post, path, json=[event], headers=key)
    others: list[Callable[[], httpx.Response]] = [
        partial(client.get, OTHERS, headers=each.headers) for each in (user, other_user)
    ]
    assert work.crowd(slow, others, count=THREADS + 1, limit=THREADS_OF_WEBHOOKS) == {200}

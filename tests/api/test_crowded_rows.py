"""More requests for a locked row than there are threads: all other requests succeed promptly."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, closing
from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.models import Sandbox
from shared.states import Status
from tests.factories import NODE_ID, SPEC_ID, ApiUser, make_node, make_sandbox, make_spec, make_user
from tests.services.foreign_locks import locked_row

# SQLite has no locks on rows.
pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)

LOCK_SECONDS = 8.0
# Shorter than the wait for a lock, although a loaded machine writes 140 errors during it.
PROMPT_SECONDS = 6.0
# Between two rounds of the other user's requests: more rounds would find no other delays, and cost CPU time.
PAUSE_SECONDS = 0.5
# A few more than `api.app.THREADS`, because the client's thread for each request needs CPU time.
REQUESTS = 140
# Sandboxes that are woken: more than an API process has write slots.
WAKES = 10
# A row of each table that a create locks.
LOCKED = {"node": NODE_ID, "sandbox_spec": SPEC_ID}


@pytest.fixture
def lock_seconds() -> float:
    """The timeout of a wait for a lock."""
    return LOCK_SECONDS


@pytest.fixture
def database(database_url: str, lock_seconds: float) -> Iterator[Database]:
    """The store as an API process opens it."""
    with closing(Database(database_url, lock_seconds=lock_seconds, kept_for_reading=2)) as database:
        make_spec(database)
        make_node(database, capacity=1000)
        yield database


@pytest.fixture
def third_user(database: Database) -> ApiUser:
    """A user who does not use the locked row."""
    return make_user(database, "carol")


def request_all(request: Callable[[int], Any], lock: AbstractContextManager[None], other: Any) -> Any:
    """Return the responses to all requests for the locked row, and the maximum wait of the other user."""
    slowest: list[float] = []
    with ThreadPoolExecutor(REQUESTS) as pool, lock:
        waiting = [pool.submit(request, number) for number in range(REQUESTS)]
        while wait(waiting, PAUSE_SECONDS).not_done:
            for url, method in other:
                began = time.monotonic()
                assert method(url).status_code == 200
                slowest.append(time.monotonic() - began)
        responses = [one.result() for one in waiting]
    return responses, max(slowest)


def others_requests(client: TestClient, other: ApiUser, theirs: Sandbox) -> Any:
    def get(url: str) -> Any:
        return client.get(url, headers=other.headers)

    def post(url: str) -> Any:
        return client.post(url, headers=other.headers)

    path = "/api/v1/sandboxes"
    found = [("/ready", get), ("/alive", get), (f"{path}/search", get), (f"{path}/{theirs.id}/pause", post)]
    for url, method in found:
        assert method(url).status_code == 200  # warm up
    return found


def assert_locked(responses: list[Any]) -> None:
    assert {(response.status_code, response.headers.get("Retry-After")) for response in responses} == {(503, "1")}
    assert all("another request holds a lock" in response.json()["detail"] for response in responses)


def test_requests_of_one_user_leave_threads_for_others(
    client: TestClient, database: Database, user: ApiUser, other_user: ApiUser
) -> None:
    own, theirs = make_sandbox(database, user), make_sandbox(database, other_user)
    others = others_requests(client, other_user, theirs)

    def pause(_number: int) -> Any:
        return client.post(f"/api/v1/sandboxes/{own.id}/pause", headers=user.headers)

    responses, slowest = request_all(pause, locked_row(database, "sandbox", own.id), others)
    assert_locked(responses)
    assert slowest < PROMPT_SECONDS


@pytest.mark.parametrize("table", ["node", "sandbox_spec"])
def test_creates_leave_write_slots_for_other_requests(
    client: TestClient,
    database: Database,
    user: ApiUser,
    other_user: ApiUser,
    third_user: ApiUser,
    table: str,
) -> None:
    theirs = make_sandbox(database, third_user)
    others = others_requests(client, third_user, theirs)
    users = (user, other_user)

    def create(number: int) -> Any:
        return client.post("/api/v1/sandboxes", headers=users[number % 2].headers)

    responses, slowest = request_all(create, locked_row(database, table, LOCKED[table]), others)
    assert_locked(responses)
    assert slowest < PROMPT_SECONDS


def test_wakes_of_one_user_s_sandboxes_leave_write_slots_for_others(
    client: TestClient, database: Database, user: ApiUser, other_user: ApiUser
) -> None:
    theirs = make_sandbox(database, other_user)
    asleep = [make_sandbox(database, user, status=Status.PAUSED) for _ in range(WAKES)]
    others = others_requests(client, other_user, theirs)

    def wake(number: int) -> Any:
        return client.get(f"/sandbox/{asleep[number % WAKES].id}/api/x", headers=user.headers)

    with ExitStack() as locks:
        for sandbox in asleep[1:]:
            locks.enter_context(locked_row(database, "sandbox", sandbox.id))
        responses, slowest = request_all(wake, locked_row(database, "sandbox", asleep[0].id), others)
    assert_locked(responses)
    assert slowest < PROMPT_SECONDS


# A loaded machine takes longer than the usual timeouts for 140 writes of one row.
@pytest.mark.parametrize("lock_seconds", [60.0])
def test_many_writes_of_one_user_succeed_without_lock_contention(
    client: TestClient, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.db.database.QUEUE_SECONDS", 60.0)

    def change(_number: int) -> int:
        response = client.post("/api/settings", json={"language": "en"}, headers=user.headers)
        return int(response.status_code)

    with ThreadPoolExecutor(REQUESTS) as pool:
        assert set(pool.map(change, range(REQUESTS))) == {200}

"""A row locked by another transaction: requests for it wait some seconds, and other requests do not wait."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.models import Sandbox
from tests.factories import ApiUser, make_sandbox
from tests.rows import as_stored
from tests.services.foreign_locks import locked_row

# SQLite has no locks on rows.
pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)

# A loaded machine needs a second or two for the requests that wait for no lock.
LOCK_SECONDS = 6.0
# Between two rounds of the other requests: more rounds would find no other delays, and cost CPU time.
PAUSE_SECONDS = 0.5
REQUESTS = 60
# Requests that change the sandbox.
WRITES: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/pause", None),
    ("POST", "/resume", None),
    ("DELETE", "", None),
    ("PATCH", "", {"freeze_after_seconds": 60}),
)


# For tests that compare no duration with the timeout, because a loaded machine may need more time.
ALONE = pytest.mark.parametrize("lock_seconds", [1.0])


@pytest.fixture
def lock_seconds() -> float:
    """The timeout of a wait for a lock."""
    return LOCK_SECONDS


@pytest.fixture
def database(database_url: str, lock_seconds: float) -> Iterator[Database]:
    """A store with a short lock timeout."""
    database = Database(database_url, lock_seconds=lock_seconds)
    yield database
    database.close()


def request_row(client: TestClient, owner: ApiUser, sandbox: Sandbox, number: int) -> Any:
    method, path, body = WRITES[number % len(WRITES)]
    url = f"/api/v1/sandboxes/{sandbox.id}{path}"
    return client.request(method, url, json=body, headers=owner.headers)


def request_others(client: TestClient, owner: ApiUser, other: ApiUser, theirs: Sandbox) -> dict[str, int]:
    """Send requests of another user, and reads of the owner; return their statuses."""
    responses = {
        "ready": client.get("/ready"),
        "list": client.get("/api/v1/sandboxes/search", headers=other.headers),
        "owner's list": client.get("/api/v1/sandboxes/search", headers=owner.headers),
        "sandbox": client.get(f"/api/v1/sandboxes/{theirs.id}", headers=other.headers),
        "settings": client.post("/api/settings", json={"language": "en"}, headers=other.headers),
        "pause": client.post(f"/api/v1/sandboxes/{theirs.id}/pause", headers=other.headers),
    }
    return {name: response.status_code for name, response in responses.items()}


def test_locked_row_delays_only_requests_for_it(
    client: TestClient, database: Database, user: ApiUser, other_user: ApiUser
) -> None:
    own, theirs = make_sandbox(database, user), make_sandbox(database, other_user)
    request_others(client, user, other_user, theirs)  # warm up
    slowest: list[float] = []
    with ThreadPoolExecutor(REQUESTS) as pool:
        with locked_row(database, "sandbox", own.id):
            waiting = [pool.submit(request_row, client, user, own, number) for number in range(REQUESTS)]
            while wait(waiting, PAUSE_SECONDS).not_done:
                began = time.monotonic()
                assert set(request_others(client, user, other_user, theirs).values()) == {200}
                slowest.append(time.monotonic() - began)
            responses = [future.result() for future in waiting]
        assert {response.status_code for response in responses} == {503}
        assert {response.headers["Retry-After"] for response in responses} == {"1"}
        assert all("another request holds a lock" in response.json()["detail"] for response in responses)
        assert slowest, "no other request was sent"
        assert max(slowest) < LOCK_SECONDS
    assert as_stored(database, own).generation == own.generation


@ALONE
def test_request_succeeds_after_the_lock_is_released(client: TestClient, database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user)
    with locked_row(database, "sandbox", sandbox.id):
        rejected = request_row(client, user, sandbox, 0)
    assert rejected.status_code == 503
    assert "another request holds a lock" in rejected.json()["detail"]
    time.sleep(float(rejected.headers["Retry-After"]))
    assert request_row(client, user, sandbox, 0).status_code == 200


@ALONE
def test_locked_user_delays_no_other_user(
    client: TestClient, database: Database, user: ApiUser, other_user: ApiUser
) -> None:
    with locked_row(database, "user", user.id):
        rejected = client.post("/api/settings", json={"language": "en"}, headers=user.headers)
        assert client.post("/api/settings", json={"language": "en"}, headers=other_user.headers).status_code == 200
    assert (rejected.status_code, rejected.headers["Retry-After"]) == (503, "1")

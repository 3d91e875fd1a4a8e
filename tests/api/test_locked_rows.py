"""A row that somebody else keeps locked: a few requests wait for it for some seconds, and nobody else waits at all."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.models import Sandbox
from tests.factories import Person, make_sandbox
from tests.rows import as_stored
from tests.services.foreign_locks import locked_row

# SQLite has no locks on rows.
pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)

LOCK_SECONDS = 2.0
REQUESTS = 60
# What may be asked of the row's owner's sandbox, and changes it.
WRITES: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/pause", None),
    ("POST", "/resume", None),
    ("DELETE", "", None),
    ("PATCH", "", {"freeze_after_seconds": 60}),
)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """One that waits less long for a lock."""
    database = Database(database_url, lock_seconds=LOCK_SECONDS)
    yield database
    database.close()


def ask_for_row(client: TestClient, owner: Person, sandbox: Sandbox, number: int) -> Any:
    method, path, body = WRITES[number % len(WRITES)]
    url = f"/api/v1/sandboxes/{sandbox.id}{path}"
    return client.request(method, url, json=body, headers=owner.headers)


def ask_for_others(client: TestClient, owner: Person, other: Person, theirs: Sandbox) -> dict[str, int]:
    """What is asked meanwhile by others, and by the owner of what is only shown."""
    asked = {
        "ready": client.get("/ready"),
        "list": client.get("/api/v1/sandboxes/search", headers=other.headers),
        "owner's list": client.get("/api/v1/sandboxes/search", headers=owner.headers),
        "sandbox": client.get(f"/api/v1/sandboxes/{theirs.id}", headers=other.headers),
        "settings": client.post("/api/settings", json={"language": "en"}, headers=other.headers),
        "pause": client.post(f"/api/v1/sandboxes/{theirs.id}/pause", headers=other.headers),
    }
    return {name: answer.status_code for name, answer in asked.items()}


def test_locked_row_holds_up_nobody_but_those_who_want_it(
    client: TestClient, database: Database, user: Person, other_user: Person
) -> None:
    mine, theirs = make_sandbox(database, user), make_sandbox(database, other_user)
    ask_for_others(client, user, other_user, theirs)  # what is made at the first use is there
    slowest: list[float] = []
    with ThreadPoolExecutor(REQUESTS) as pool:
        with locked_row(database, "sandbox", mine.id):
            waiting = [pool.submit(ask_for_row, client, user, mine, number) for number in range(REQUESTS)]
            while not are_done(waiting):
                began = time.monotonic()
                assert set(ask_for_others(client, user, other_user, theirs).values()) == {200}
                slowest.append(time.monotonic() - began)
            answers = [asked.result() for asked in waiting]
        assert {answer.status_code for answer in answers} == {503}
        assert {answer.headers["Retry-After"] for answer in answers} == {"1"}
        assert all("somebody else is changing" in answer.json()["detail"] for answer in answers)
        assert slowest, "nothing was asked meanwhile"
        assert max(slowest) < LOCK_SECONDS
    assert as_stored(database, mine).generation == mine.generation


def are_done(waiting: list[Future[Any]]) -> bool:
    return all(asked.done() for asked in waiting)


def test_request_succeeds_as_soon_as_the_row_is_free(client: TestClient, database: Database, user: Person) -> None:
    sandbox = make_sandbox(database, user)
    with locked_row(database, "sandbox", sandbox.id):
        refused = ask_for_row(client, user, sandbox, 0)
    assert refused.status_code == 503
    assert "somebody else is changing" in refused.json()["detail"]
    time.sleep(float(refused.headers["Retry-After"]))
    assert ask_for_row(client, user, sandbox, 0).status_code == 200


def test_locked_user_holds_up_nobody_else(
    client: TestClient, database: Database, user: Person, other_user: Person
) -> None:
    with locked_row(database, "user", user.id):
        refused = client.post("/api/settings", json={"language": "en"}, headers=user.headers)
        assert client.post("/api/settings", json={"language": "en"}, headers=other_user.headers).status_code == 200
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")

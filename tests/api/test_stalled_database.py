"""A stalled PostgreSQL server: every request is a 503, and so is the readiness check."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.request.readiness import MAX_SECONDS
from shared.db import postgresql
from shared.db.database import Database
from shared.db.postgresql import OPTIONS
from shared.models import Sandbox
from tests.factories import ApiUser, make_sandbox
from tests.services.postgres import Postgres, running_postgres
from tests.services.stores import PostgresStores

STATEMENT_SECONDS, GRACE_SECONDS, QUEUE_SECONDS = 1.0, 0.5, 1.0
# More requests than there are threads.
REQUESTS = 130
# A request that waits for a thread first waits for the timeouts of others, and a loaded machine adds to that.
LIMIT_SECONDS = 3 * (STATEMENT_SECONDS + GRACE_SECONDS + QUEUE_SECONDS) + 10


@pytest.fixture(scope="module")
def stores() -> Iterator[tuple[Postgres, PostgresStores]]:
    """A dedicated server, because the servers of other tests must not stall."""
    with running_postgres() as server:
        stores = PostgresStores(server)
        yield server, stores
        stores.close()


@pytest.fixture
def server(stores: tuple[Postgres, PostgresStores]) -> Postgres:
    """The server that stalls."""
    return stores[0]


@pytest.fixture
def database_url(stores: tuple[Postgres, PostgresStores]) -> Iterator[str]:
    """A database of this server."""
    with stores[1].fresh() as url:
        yield url


@pytest.fixture
def database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """The store, with short timeouts."""
    monkeypatch.setattr(postgresql, "GRACE_SECONDS", GRACE_SECONDS)
    monkeypatch.setattr(postgresql, "PING_ANSWER_SECONDS", GRACE_SECONDS)
    monkeypatch.setitem(OPTIONS, "connect_timeout", 2)
    monkeypatch.setattr("shared.db.database.QUEUE_SECONDS", QUEUE_SECONDS)
    with closing(Database(database_url, statement_seconds=STATEMENT_SECONDS, kept_for_reading=2)) as database:
        yield database


def send(client: TestClient, owner: ApiUser, sandbox: Sandbox, number: int) -> Any:
    requests = (
        ("GET", "/api/v1/sandboxes/search", None),
        ("GET", f"/api/v1/sandboxes/{sandbox.id}", None),
        ("POST", f"/api/v1/sandboxes/{sandbox.id}/pause", None),
        ("POST", "/api/settings", {"language": "en"}),
    )
    method, path, body = requests[number % len(requests)]
    return client.request(method, path, json=body, headers=owner.headers)


def test_requests_are_a_503_and_succeed_after_the_stall(
    client: TestClient, server: Postgres, database: Database, user: ApiUser
) -> None:
    sandbox = make_sandbox(database, user)
    assert {send(client, user, sandbox, number).status_code for number in range(4)} == {200}
    with ThreadPoolExecutor(REQUESTS) as pool, server.frozen():
        began = time.monotonic()
        waiting = [pool.submit(send, client, user, sandbox, number) for number in range(REQUESTS)]
        while not all(one.done() for one in waiting):
            assert_not_ready(client)
        responses = [one.result() for one in waiting]
        assert time.monotonic() - began < LIMIT_SECONDS
    assert {(response.status_code, response.headers.get("Retry-After")) for response in responses} == {(503, "1")}
    assert {send(client, user, sandbox, number).status_code for number in range(4)} == {200}
    assert client.get("/ready").status_code == 200


def assert_not_ready(client: TestClient) -> None:
    began = time.monotonic()
    response = client.get("/ready")
    assert time.monotonic() - began < MAX_SECONDS + 2
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert "the store does not respond" in response.json()["detail"]
    assert client.get("/alive").status_code == 200


def test_readiness_check_has_its_own_timeout(
    client: TestClient, server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.request.readiness.MAX_SECONDS", 1)
    assert client.get("/ready").status_code == 200
    with server.frozen():
        for _ in range(3):
            began = time.monotonic()
            assert client.get("/ready").status_code == 503
            assert time.monotonic() - began < 3

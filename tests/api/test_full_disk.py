"""A database on a full disk, or one that is read-only: reads continue, and writes report the reason."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from psycopg.errors import AdminShutdown, DiskFull, ReadOnlySqlTransaction
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from shared.db.database import Database, is_disk_full, is_read_only
from tests.factories import ApiUser


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_error_of_a_write_names_the_full_disk(client: TestClient, database: Database, user: ApiUser) -> None:
    def leave_no_room(connection: Any, _record: object) -> None:
        connection.execute("PRAGMA max_page_count = 1")  # SQLite makes it the current number of pages

    database.engine.dispose()
    event.listen(database.engine, "connect", leave_no_room)
    refused = client.post("/api/v1/secrets", json={"name": "A", "value": "x" * 60_000}, headers=user.headers)
    assert (refused.status_code, "disk is full" in refused.json()["detail"]) == (503, True)
    assert client.get("/api/v1/secrets/search", headers=user.headers).json()["items"] == []


def test_postgresql_s_error_of_a_full_disk_is_recognized() -> None:
    found = [is_disk_full(OperationalError(None, None, cause)) for cause in (DiskFull(), AdminShutdown())]
    assert found == [True, False]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_postgresql_that_takes_no_writes_is_no_internal_error(
    client: TestClient, database: Database, user: ApiUser
) -> None:
    def take_no_writes(connection: Any, _record: object) -> None:
        connection.execute("SET default_transaction_read_only = on")
        connection.commit()

    database.engine.dispose()
    event.listen(database.engine, "connect", take_no_writes)
    refused = client.post("/api/v1/secrets", json={"name": "A", "value": "x"}, headers=user.headers)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    assert "read-only" in refused.json()["detail"]
    assert client.get("/api/v1/secrets/search", headers=user.headers).json()["items"] == []
    event.remove(database.engine, "connect", take_no_writes)  # the next connection leads to a server that takes writes
    assert client.post("/api/v1/secrets", json={"name": "A", "value": "x"}, headers=user.headers).is_success


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_sqlite_file_that_takes_no_writes_is_named(client: TestClient, database: Database, user: ApiUser) -> None:
    database.engine.dispose()
    event.listen(database.engine, "connect", lambda connection, _: connection.execute("PRAGMA query_only = 1"))
    refused = client.post("/api/v1/secrets", json={"name": "A", "value": "x"}, headers=user.headers)
    assert (refused.status_code, "read-only" in refused.json()["detail"]) == (503, True)


def test_replica_is_reported_as_read_only() -> None:
    found = [is_read_only(OperationalError(None, None, cause)) for cause in (ReadOnlySqlTransaction(), DiskFull())]
    assert found == [True, False]

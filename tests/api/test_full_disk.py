"""A database on a full disk: reads continue, and writes report the reason."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from psycopg.errors import AdminShutdown, DiskFull
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from shared.db.database import Database, is_disk_full
from tests.factories import Person


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_writes_name_the_full_disk(client: TestClient, database: Database, user: Person) -> None:
    def leave_no_room(connection: Any, _record: object) -> None:
        connection.execute("PRAGMA max_page_count = 1")  # as many as there are

    database.engine.dispose()
    event.listen(database.engine, "connect", leave_no_room)
    refused = client.post("/api/v1/secrets", json={"name": "A", "value": "x" * 60_000}, headers=user.headers)
    assert (refused.status_code, "disk is full" in refused.json()["detail"]) == (503, True)
    assert client.get("/api/v1/secrets/search", headers=user.headers).json()["items"] == []


def test_postgresql_s_error_of_a_full_disk_is_known() -> None:
    found = [is_disk_full(OperationalError(None, None, cause)) for cause in (DiskFull(), AdminShutdown())]
    assert found == [True, False]

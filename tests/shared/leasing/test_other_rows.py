"""Rows whose fencing tokens happen to be equal: a lease is for one row only."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlmodel import Session

from shared.clock import after, now
from shared.db.database import Database
from shared.leasing import leases, renewals
from shared.models import Sandbox
from tests.factories import ApiUser, make_sandbox
from tests.rows import as_stored

Act = Callable[[Session, Sandbox], object]
ACTS: dict[str, Act] = {
    "write": lambda session, row: leases.write(session, Sandbox, row.id, row.fence, detail="mine"),
    "release": lambda session, row: leases.release(session, Sandbox, row.id, row.fence),
    "mark due": lambda session, row: leases.mark_due(session, Sandbox, row.id, now()),
    "renew": lambda session, row: renewals.renew(session, Sandbox, {row.id: row.fence}, 60),
}


@pytest.fixture
def rows(database: Database, user: ApiUser) -> list[Sandbox]:
    """Two sandboxes that one worker has leased for the same number of times."""
    lease: dict[str, Any] = {"fence": 7, "lease_owner": "w1", "lease_until": after(10)}
    return [make_sandbox(database, user, **lease) for _ in range(2)]


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_write_changes_its_row_only(database: Database, rows: list[Sandbox], act: Act, place: int) -> None:
    with database.transaction() as session:
        act(session, rows[place])
    assert [as_stored(database, row) == row for row in rows] == [place != 0, place != 1]


@pytest.mark.parametrize("place", [0, 1])
def test_read_returns_its_row_only(database: Database, rows: list[Sandbox], place: int) -> None:
    row = rows[place]
    assert list(leases.read(database, Sandbox, row.id, row.fence, ("id",))) == [row.id]

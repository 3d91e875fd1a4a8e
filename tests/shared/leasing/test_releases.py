"""A released row is due at the earlier of its retry and of what was requested during the lease."""

from datetime import timedelta

import pytest

from shared.clock import now
from shared.db.database import Database
from shared.leasing import leases
from shared.models import Sandbox
from tests.factories import ApiUser, make_sandbox
from tests.rows import stored_row

EARLY, LATE = timedelta(seconds=2), timedelta(seconds=15)


@pytest.mark.parametrize(
    ("requested", "retry", "expected"),
    [
        (LATE, EARLY, EARLY),
        (EARLY, LATE, EARLY),
        (EARLY, None, EARLY),
        (None, LATE, LATE),
        (None, None, None),
        (timedelta(days=1), EARLY, EARLY),
    ],
    ids=["retry first", "request first", "only a request", "only a retry", "neither", "request by a wrong clock"],
)
def test_release_keeps_the_earlier_due_time(
    database: Database, user: ApiUser, requested: timedelta | None, retry: timedelta | None, expected: timedelta | None
) -> None:
    moment = now()
    row = make_sandbox(database, user, due_at=moment + requested if requested else None, fence=7)
    with database.transaction() as session:
        is_due = leases.release(session, Sandbox, row.id, 7, moment + retry if retry else None)
    assert is_due == (expected is not None)
    assert stored_row(database, Sandbox, row.id).due_at == (moment + expected if expected else None)

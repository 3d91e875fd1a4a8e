"""Rows are dequeued as they are now, by the same number of statements for any number of rows."""

from typing import Any

import pytest
from sqlalchemy import event
from sqlmodel import col

from shared.clock import after, now
from shared.db.database import Database
from shared.leasing import leases
from shared.models import Sandbox
from tests.factories import ApiUser, make_sandbox

EVERYTHING = col(Sandbox.id).is_not(None)


@pytest.mark.parametrize("number", [1, 30])
def test_dequeue_takes_one_select_and_one_update(database: Database, user: ApiUser, number: int) -> None:
    ids = sorted(make_sandbox(database, user, due_at=now()).id for _ in range(number))
    verbs: list[str] = []

    def record(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        verbs.append(statement.split(maxsplit=1)[0])

    with database.transaction() as session:
        event.listen(database.engine, "before_cursor_execute", record)
        try:
            taken = leases.dequeue_due(session, Sandbox, ids, again_at=after(9))
        finally:
            event.remove(database.engine, "before_cursor_execute", record)
    assert sorted(taken) == ids
    assert [verb for verb in verbs if verb != "BEGIN"] == ["SELECT", "UPDATE"]


def test_rows_that_are_not_due_are_not_found(database: Database, user: ApiUser) -> None:
    make_sandbox(database, user)
    make_sandbox(database, user, due_at=after(9))
    make_sandbox(database, user, due_at=now(), lease_owner="w1", lease_until=after(9))
    with database.reading() as session:
        assert leases.find_due(session, Sandbox, EVERYTHING) == []


def test_row_claimed_after_the_select_is_skipped(database: Database, user: ApiUser) -> None:
    ids = [make_sandbox(database, user, due_at=now()).id for _ in range(2)]
    with database.transaction() as session:
        assert leases.claim(session, Sandbox, ids[0], "w1", 9) is not None
    with database.transaction() as session:
        assert leases.dequeue_due(session, Sandbox, ids, again_at=after(9)) == [ids[1]]

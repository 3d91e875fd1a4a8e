"""Dequeuing due rows takes the same number of statements for any number of rows."""

from typing import Any

import pytest
from sqlalchemy import event

from shared.clock import after, now
from shared.db.database import Database
from shared.leasing import leases
from shared.models import Sandbox
from tests.factories import Person, make_sandbox


@pytest.mark.parametrize("number", [1, 30])
def test_dequeue_takes_one_select_and_one_update(database: Database, user: Person, number: int) -> None:
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

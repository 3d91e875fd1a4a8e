"""Taking due rows costs the same statements, however many there are."""

from typing import Any

import pytest
from sqlalchemy import event

from shared.clock import after, now
from shared.db.database import Database
from shared.leasing import leases
from shared.models import Sandbox
from tests.factories import Person, make_sandbox


@pytest.mark.parametrize("number", [1, 30])
def test_rows_are_taken_by_one_select_and_one_update(database: Database, user: Person, number: int) -> None:
    ids = sorted(make_sandbox(database, user, due_at=now()).id for _ in range(number))
    said: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        said.append(statement.split(maxsplit=1)[0])

    with database.transaction() as session:
        event.listen(database.engine, "before_cursor_execute", note)
        try:
            taken = leases.dequeue_due(session, Sandbox, ids, again_at=after(9))
        finally:
            event.remove(database.engine, "before_cursor_execute", note)
    assert sorted(taken) == ids
    assert [word for word in said if word != "BEGIN"] == ["SELECT", "UPDATE"]

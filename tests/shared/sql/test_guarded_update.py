"""A guarded update writes a row only if it is as expected, with one statement."""

from typing import Any

import pytest
from sqlmodel import col

from shared.clock import now
from shared.db.database import Database
from shared.models import Sandbox
from shared.sql.statements import count_written, guarded_update, unchanged, write_unchanged
from tests.factories import ApiUser, make_sandbox
from tests.rows import as_stored

EXPECTED: dict[str, Any] = {"fence": 7, "detail": None, "reason": "exit_code"}


@pytest.fixture
def sandbox(database: Database, user: ApiUser) -> Sandbox:
    make_sandbox(database, user, **EXPECTED)
    return make_sandbox(database, user, **EXPECTED)


def test_row_that_is_as_expected_is_written(database: Database, sandbox: Sandbox) -> None:
    due_at, returning = now(), ("id", "due_at", "fence")
    with database.transaction() as session:
        expected = {"id": sandbox.id, **EXPECTED}
        written = write_unchanged(session, Sandbox, expected, {"due_at": due_at, "detail": "why"}, returning)
    assert tuple(written or ()) == (sandbox.id, due_at, 7)
    stored = as_stored(database, sandbox)
    assert (stored.due_at, stored.detail, stored.fence) == (due_at, "why", 7)


@pytest.mark.parametrize("other", [{"fence": 8}, {"detail": "why"}, {"reason": None}, {"id": "0" * 32}])
def test_row_that_has_changed_is_not_written(database: Database, sandbox: Sandbox, other: dict[str, Any]) -> None:
    stored, expected = as_stored(database, sandbox), {"id": sandbox.id, **EXPECTED, **other}
    with database.transaction() as session:
        assert write_unchanged(session, Sandbox, expected, {"due_at": now()}) is None
        statement = guarded_update(Sandbox, unchanged(Sandbox, **expected), {"due_at": now()})
        assert count_written(session, statement) == 0
    assert as_stored(database, sandbox) == stored


def test_values_may_be_expressions(database: Database, sandbox: Sandbox) -> None:
    guard, values = unchanged(Sandbox, id=sandbox.id, **EXPECTED), {"fence": col(Sandbox.fence) + 1}
    with database.transaction() as session:
        assert count_written(session, guarded_update(Sandbox, guard, values)) == 1
        assert count_written(session, guarded_update(Sandbox, guard, values)) == 0
    assert as_stored(database, sandbox).fence == EXPECTED["fence"] + 1

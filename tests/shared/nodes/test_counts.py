"""Counts for metrics, which read only indexes."""

from datetime import timedelta

import pytest
from sqlalchemy import event

from shared.clock import now
from shared.db.database import Database
from shared.nodes import counts
from shared.nodes.counts import Counted
from shared.states import Reason, Status
from tests.factories import NODE_ID, ApiUser, make_sandbox


def test_sandboxes_that_exist_are_counted(database: Database, user: ApiUser) -> None:
    for status, reason in (
        (Status.RUNNING, None),
        (Status.RUNNING, None),
        (Status.ERROR, Reason.OOM_KILLED),
        (Status.DELETED, None),
    ):
        make_sandbox(database, user, status=status, reason=reason)
    with database.reading() as session:
        found = counts.count_by_status(session)
    assert sorted(found) == [Counted(NODE_ID, "ERROR", "oom_killed", 1), Counted(NODE_ID, "RUNNING", "", 2)]


def test_unreconciled_are_counted_whether_due_or_not(database: Database, user: ApiUser) -> None:
    def count() -> counts.Unreconciled:
        with database.reading() as session:
            return counts.count_unreconciled(session)

    make_sandbox(database, user, observed_generation=1)
    make_sandbox(database, user, status=Status.DELETED, observed_generation=0)
    assert count() == (0, None)
    old = now() - timedelta(hours=1)
    make_sandbox(database, user, observed_generation=0, due_at=None, updated_at=old)
    make_sandbox(database, user, observed_generation=0)
    assert count() == (2, old)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # PostgreSQL would scan a small table instead
def test_counts_read_only_their_indexes(database: Database) -> None:
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.extend([statement] if statement.startswith("SELECT") else [])

    event.listen(database.engine, "before_cursor_execute", note)
    with database.reading() as session:
        counts.count_by_status(session)
        counts.count_unreconciled(session)
    event.remove(database.engine, "before_cursor_execute", note)
    for index, statement in zip(("ix_sandbox_counts", "ix_sandbox_unreconciled"), statements, strict=True):
        with database.engine.connect() as connection:
            plan = str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}").all())
        assert f"INDEX {index}" in plan

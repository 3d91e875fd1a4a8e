"""Prepared statements: values survive a round trip on both databases, in a session's own transaction too."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import insert, literal, select
from sqlmodel import col

from shared.db.database import Database
from shared.models import Sandbox, SandboxSpec, User
from shared.models.change_feed import ListVersion
from shared.sandboxes import specs
from shared.sql.statements import (
    all_columns,
    bind,
    bind_list,
    bind_list_values,
    bind_values,
    make_row,
    prepare,
    rounded,
    send,
)
from tests.factories import ApiUser, make_sandbox, make_spec

READ = select(*all_columns(Sandbox)).where(col(Sandbox.id) == bind("id"))
ADD = insert(ListVersion).values(owner_id=bind("owner_id"), version=bind("version"))
VERSION = select(col(ListVersion.version)).where(col(ListVersion.owner_id) == bind("owner_id"))
COLUMNS: dict[str, Any] = {
    "exposed_urls": [{"name": "VSCODE", "url": "http://x/%s", "port": 1}],
    "last_active_at": datetime(2026, 2, 3, 4, 5, 6, 7, tzinfo=timezone(timedelta(hours=9))),
    "lease_until": None,
}


def test_prepared_row_equals_the_row_of_a_session(database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user, **COLUMNS)
    with database.reading() as session:
        [sent] = send(session, READ, bind_values(id=sandbox.id))
        expected = session.get_one(Sandbox, sandbox.id).model_dump()
    [fetched] = database.fetch(READ, bind_values(id=sandbox.id))
    for row in (sent, fetched):
        made = make_row(Sandbox, row)
        assert made.model_dump() == expected
        assert made.last_active_at.tzinfo == UTC


def test_prepared_spec_equals_the_spec_of_a_session(database: Database) -> None:
    made = make_spec(database, cpus=1.5, env={"A": "b"}, command=["c"])
    found = specs.read_spec(database, made.id)
    with database.reading() as session:
        assert found.model_dump() == session.get_one(SandboxSpec, made.id).model_dump()
    assert isinstance(found.cpus, float)


def test_statement_sees_unflushed_changes_of_its_session(database: Database) -> None:
    with database.transaction() as session:
        session.add(User(id="u1", name="later"))
        [row] = send(session, select(col(User.name)).where(col(User.id) == bind("id")), bind_values(id="u1"))
    assert row[0] == "later"


def test_statement_is_rolled_back_with_its_transaction(database: Database) -> None:
    def change_and_fail() -> None:
        with database.transaction() as session:
            assert send(session, ADD, bind_values(owner_id="u1", version="1")) == ()
            assert list(map(tuple, send(session, VERSION, bind_values(owner_id="u1")))) == [("1",)]
            raise LookupError

    with pytest.raises(LookupError):
        change_and_fail()
    assert list(database.fetch(VERSION, bind_values(owner_id="u1"))) == []


def test_statement_outside_a_transaction_is_committed(database: Database) -> None:
    kept = ADD.returning(col(ListVersion.version))
    assert list(map(tuple, database.execute_and_commit(kept, bind_values(owner_id="u1", version="%(x)s :y ?")))) == [
        ("%(x)s :y ?",)
    ]
    assert [tuple(row) for row in database.fetch(VERSION, bind_values(owner_id="u1"))] == [("%(x)s :y ?",)]


@pytest.mark.parametrize("number", [1, 2, 3, 8, 9])
def test_statement_takes_any_number_of_ids(database: Database, user: ApiUser, number: int) -> None:
    ids = [make_sandbox(database, user).id for _ in range(number)]
    make_sandbox(database, user)
    requested = select(col(Sandbox.id)).where(col(Sandbox.id).in_(bind_list("id", rounded(number))))
    assert {row[0] for row in database.fetch(requested, bind_list_values("id", ids))} == set(ids)


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_statement_with_a_literal_list_is_refused(dialect: str) -> None:
    with pytest.raises(ValueError, match="bind_list"):
        prepare(select(literal(1)).where(col(User.id).in_(["a", "b"])), dialect)


def test_statement_is_compiled_once(database: Database) -> None:
    name = database.engine.dialect.name
    assert prepare(VERSION, name) is prepare(VERSION, name)

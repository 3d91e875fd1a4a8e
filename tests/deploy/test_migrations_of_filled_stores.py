"""Migrations from every earlier revision, with rows in every table: nothing is lost, and the schema is the newest."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError
from sqlmodel import SQLModel, select

from shared import models
from shared.db.database import Database
from shared.db.migrations import SCRIPTS, configuration, migrate, opened
from tests.deploy.filled_stores import ROWS, describe, fill, read, reflect
from tests.services.postgres import Postgres
from tests.services.stores import Stores

# All but the newest, the oldest first.
REVISIONS = [script.revision for script in ScriptDirectory(str(SCRIPTS)).walk_revisions()][:0:-1]
# Rows of an early revision pass through all later migrations; at the newest revisions, each table has rows.
EACH_CHANGE = {"sqlite": [*REVISIONS[:-3:6], *REVISIONS[-3:]], "postgresql": [REVISIONS[0], REVISIONS[-1]]}
CASES = [
    pytest.param(kind, revision, id=f"{kind}-{revision}", marks=[] if revision in each else [pytest.mark.nightly])
    for kind, each in EACH_CHANGE.items()
    for revision in REVISIONS
]


class Pair(NamedTuple):
    """The URLs of an empty database and of one that was migrated without rows."""

    empty: str
    newest: str


@pytest.fixture
def pair(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    stores: Stores = request.getfixturevalue({"sqlite": "sqlite_stores", "postgresql": "postgres_stores"}[kind])
    with ExitStack() as stack:
        newest = stack.enter_context(stores.fresh())
        if kind == "sqlite":
            yield Pair(f"sqlite:///{tmp_path / 'empty.db'}", newest)
            return
        server: Postgres = request.getfixturevalue("postgres_server")
        name = server.create()
        stack.callback(server.drop, name)
        yield Pair(server.url(name), newest)


@pytest.mark.parametrize(("kind", "revision"), CASES)
def test_migrating_preserves_every_row_of_an_earlier_revision(pair: Pair, revision: str) -> None:
    with opened(pair.empty) as connection:
        command.upgrade(configuration(connection), revision)
        fill(connection)
        before = read(connection)
    assert before
    assert all(len(rows) == ROWS for rows in before.values())

    migrate(pair.empty)
    with opened(pair.newest) as connection:
        newest = describe(connection)
    with opened(pair.empty) as connection:
        after = read(connection)
        for table, rows in before.items():
            kept = [{name: row[name] for name in old} for row, old in zip(after[table], rows, strict=True)]
            assert kept == rows, table
        assert describe(connection) == newest
        assert_constraints_hold(connection)
    assert_models_read(pair.empty, set(before))


def assert_constraints_hold(connection: Connection) -> None:
    """Check foreign keys and unique constraints."""
    if connection.dialect.name == "sqlite":
        assert connection.execute(text("PRAGMA foreign_key_check")).all() == []
    for table in reflect(connection).sorted_tables:
        for row in connection.execute(table.select().limit(1)).mappings().all():
            with pytest.raises(IntegrityError), connection.begin_nested():
                connection.execute(table.insert(), dict(row))


def assert_models_read(url: str, tables: set[str]) -> None:
    """Check that current code reads what earlier code wrote."""
    found = [each for each in vars(models).values() if isinstance(each, type)]
    database = Database(url)
    with database.reading() as session:
        read_by = {
            model.__tablename__: len(session.exec(select(model)).all())
            for model in found
            if issubclass(model, SQLModel) and model.__tablename__ in tables
        }
    database.close()
    assert read_by == dict.fromkeys(tables, ROWS)

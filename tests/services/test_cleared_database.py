"""A cleared database has no trace of the previous test: rows, sequences, schema and connections."""

from collections.abc import Iterator

import pytest
from sqlalchemy import func, text
from sqlalchemy.exc import OperationalError
from sqlmodel import Session, select

from shared.db.database import Database
from shared.models import SandboxTransition, User
from tests.factories import make_sandbox, make_user
from tests.services.postgres import Postgres
from tests.services.stores import PostgresStores

TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"


@pytest.fixture
def stores(postgres_server: Postgres) -> Iterator[PostgresStores]:
    """The stores of this test."""
    stores = PostgresStores(postgres_server)
    yield stores
    stores.close()


def read_all(url: str) -> dict[str, list[str]]:
    """Read every row of every table."""
    database = Database(url)
    with database.reading() as session:
        tables = sorted(session.execute(text(TABLES)).scalars())
        rows = {name: session.execute(text(f'SELECT t::text FROM "{name}" AS t')).scalars() for name in tables}
        found = {name: sorted(those) for name, those in rows.items()}
    database.close()
    return found


def test_rows_and_sequences_are_those_of_a_migrated_database(stores: PostgresStores) -> None:
    with stores.cleared() as url:
        before = read_all(url)
        numbers = [first_transition(url)]
        assert read_all(url) != before
    with stores.cleared() as again:
        assert (again, read_all(again)) == (url, before)
        numbers.append(first_transition(again))
    assert numbers[0] == numbers[1]


def first_transition(url: str) -> int | None:
    database = Database(url)
    make_sandbox(database, make_user(database, "alice"))
    with database.transaction() as session:
        session.add(SandboxTransition(sandbox_id=one_sandbox(session), to_status="RUNNING"))
    with database.reading() as session:
        number = session.exec(select(func.min(SandboxTransition.id))).first()
    database.close()
    return number


def one_sandbox(session: Session) -> str:
    return str(session.execute(text("SELECT id FROM sandbox")).scalar_one())


def test_transaction_that_is_left_open_is_ended(stores: PostgresStores) -> None:
    with stores.cleared() as url:
        left = Database(url)
        session = Session(left.engine)
        session.add(User(name="alice"))
        session.flush()
    with stores.cleared() as again:
        assert read_all(again)["user"] == []
    with pytest.raises(OperationalError):
        session.execute(text("SELECT 1"))
    session.close()
    left.close()


@pytest.mark.parametrize("statement", ["CREATE TABLE more (id int)", "DROP INDEX ix_sandbox_member", "ANALYZE"])
def test_database_whose_schema_or_statistics_changed_is_replaced(stores: PostgresStores, statement: str) -> None:
    with stores.cleared() as url:
        database = Database(url)
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text(statement))
        database.close()
    with stores.cleared() as again:
        assert again != url
        assert "more" not in read_all(again)

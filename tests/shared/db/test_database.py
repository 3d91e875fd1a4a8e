"""Transactions, on both databases."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from psycopg.pq import TransactionStatus
from sqlalchemy import bindparam, delete, event, func, text, update
from sqlalchemy.exc import DBAPIError, OperationalError, StatementError
from sqlalchemy.pool import Pool
from sqlmodel import Session, col, select

from shared.cli.local.installation import LocalInstallation
from shared.clock import now
from shared.db.database import UNAVAILABLE, Database
from shared.models import Node, SandboxSpec, User
from shared.settings import Settings
from tests.factories import ApiUser, make_conversation, make_event, make_node, make_sandbox
from tests.services.stores import PostgresStores


def names(database: Database) -> list[str]:
    with database.reading() as session:
        return sorted(session.exec(select(User.name)).all())


def test_transaction_commits_at_its_end(database: Database) -> None:
    with database.transaction() as session:
        session.add(User(name="a"))
    assert names(database) == ["a"]


def test_error_rolls_the_transaction_back(database: Database) -> None:
    def fail(session: Session) -> None:
        session.add(User(name="a"))
        session.flush()
        raise RuntimeError

    with pytest.raises(RuntimeError), database.transaction() as session:
        fail(session)
    assert names(database) == []


def test_reader_cannot_write(database: Database, user: ApiUser) -> None:
    def add(session: Session) -> None:
        session.add(User(name="a"))
        session.flush()

    def change(session: Session) -> None:
        session.execute(update(User).values(name="b"))

    def forget(session: Session) -> None:
        session.execute(delete(User))

    for write in (add, change, forget):
        with pytest.raises(RuntimeError, match="reads"), database.reading() as session:
            write(session)
    assert names(database) == [user.name]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_commit_waits_for_the_disk(database: Database) -> None:
    with database.transaction() as session:
        assert session.execute(text("PRAGMA synchronous")).scalar() == 2  # FULL
        assert session.execute(text("PRAGMA journal_mode")).scalar() == "wal"


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_connection_that_died_while_idle_is_replaced(
    database: Database, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.db.postgresql.PING_SECONDS", 0.0)
    assert names(database) == [user.name]
    kill_others(database)
    assert names(database) == [user.name]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_connection_that_died_in_use_is_an_outage_and_is_replaced(
    database: Database, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.db.postgresql.PING_SECONDS", 60.0)
    assert names(database) == [user.name]
    kill_others(database)
    with pytest.raises(OperationalError):
        names(database)
    assert names(database) == [user.name]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_burst_opens_no_connections_beyond_the_pool(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.db.database.QUEUE_SECONDS", 0.1)
    with closing(Database(database_url, pool_size=2)) as database:
        with database.transaction() as one, database.transaction() as another:
            assert one.connection() is not another.connection()
            with pytest.raises(UNAVAILABLE), database.transaction():
                pass
            with pytest.raises(UNAVAILABLE), database.reading() as third:
                third.connection()
            assert database.fetch(select(func.count(col(User.id))), {}) == [(0,)]
        assert names(database) == []


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_reads_by_themselves_begin_no_transaction(database: Database, user: ApiUser) -> None:
    left: list[TransactionStatus] = []

    @event.listens_for(Pool, "reset")
    def note(connection: Any, *_: Any) -> None:
        left.append(connection.info.transaction_status)

    try:
        assert database.fetch(select(User.name), {}) == [(user.name,)]
        assert names(database) == [user.name]
    finally:
        event.remove(Pool, "reset", note)
    assert left == [TransactionStatus.IDLE] * 2


def kill_others(database: Database) -> None:
    """End all connections to a database except this one."""
    with (
        closing(Database(database.engine.url.render_as_string(hide_password=False))) as other,
        other.reading() as session,
    ):
        mine = "pid <> pg_backend_pid() AND datname = current_database()"
        others = text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {mine}")
        session.execute(others)


def test_rows_are_readable_after_their_session(database: Database, user: ApiUser) -> None:
    with database.transaction() as session:
        row = session.get_one(User, user.id)
    assert row.name == user.name


def test_writers_that_read_first_wait_for_each_other(database: Database) -> None:
    make_node(database, "a", capacity=0)

    def add_one(_number: int) -> None:
        with database.transaction() as session:
            node = _locked(session)
            node.capacity += 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add_one, range(40)))
    with database.reading() as session:
        assert _locked(session).capacity == 40


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_statements_time_out(database: Database) -> None:
    set_ = select(func.current_setting("lock_timeout"), func.current_setting("statement_timeout"))
    with database.transaction() as writing, database.reading() as reading:
        found = [*writing.execute(set_).all(), *reading.execute(set_).all(), *database.fetch(set_, {})]
    assert [tuple(one) for one in found] == [("5s", "30s")] * 3


# SQLite's lock is a file lock, which is held as long as its process lives.
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_suspended_process_holds_no_lock_for_long(database: Database) -> None:
    make_node(database, "a", capacity=0)
    still = Database(database.engine.url.render_as_string(hide_password=False), idle_seconds=0.1)

    def stall(session: Session) -> None:
        _locked(session).capacity = 1
        session.flush()
        with database.transaction() as other:  # waits until the row is unlocked
            _locked(other).capacity = 2

    with closing(still):
        with pytest.raises(OperationalError), still.transaction() as session:
            stall(session)
        with still.reading() as session:
            assert session.get_one(Node, "a").capacity == 2


def _locked(session: Session) -> Node:
    return session.get_one(Node, "a", with_for_update=True)


def test_times_are_read_in_utc_to_the_microsecond(database: Database, user: ApiUser) -> None:
    at = datetime(2026, 11, 20, 1, 2, 3, 456789, tzinfo=timezone(timedelta(hours=5)))
    with database.transaction() as session:
        session.get_one(User, user.id).created_at = at
    with database.reading() as session:
        stored = session.get_one(User, user.id).created_at
    assert stored == at
    assert stored.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    "default", ["timezone = 'America/New_York'", "timezone = 'Asia/Tokyo'", "datestyle = 'SQL, DMY'"]
)
def test_earliest_and_latest_times_are_read_with_any_default(postgres_stores: PostgresStores, default: str) -> None:
    times = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)]
    with postgres_stores.fresh() as url:
        set_default(url, default)
        with closing(Database(url)) as database:
            for number, at in enumerate(times):
                with database.transaction() as session:
                    session.add(User(name=f"user-{number}", created_at=at))
            with database.reading() as session:
                assert sorted(session.exec(select(User.created_at))) == times
            assert sorted(at for (at,) in database.fetch(select(User.created_at), {})) == times


def test_any_text_is_stored_with_any_default(postgres_stores: PostgresStores) -> None:
    with postgres_stores.fresh() as url:
        set_default(url, "client_encoding = 'LATIN1'")
        with closing(Database(url)) as database:
            with database.transaction() as session:
                session.add(User(name="🙂"))
            assert list(database.fetch(select(User.name), {})) == [("🙂",)]


def test_installation_is_migrated_again_with_any_default(postgres_stores: PostgresStores, tmp_path: Path) -> None:
    with postgres_stores.fresh() as url:
        set_default(url, "datestyle = 'SQL, DMY'")
        installation = LocalInstallation(Settings(database_url=url, var_dir=tmp_path))
        installation.prepare()
        installation.prepare()  # reads the times of the specs
        with closing(Database(url)) as database:
            assert list(database.fetch(select(SandboxSpec.id), {})) == [(Settings().default_sandbox_image,)]


def set_default(url: str, default: str) -> None:
    with closing(Database(url)) as operator, operator.engine.begin() as connection:
        name = connection.exec_driver_sql("SELECT current_database()").scalar()
        connection.exec_driver_sql(f'ALTER DATABASE "{name}" SET {default}')


def test_naive_time_is_rejected(database: Database, user: ApiUser) -> None:
    with pytest.raises(StatementError, match="naive"), database.transaction() as session:
        session.get_one(User, user.id).created_at = now().replace(tzinfo=None)


def test_document_may_contain_any_json_value(database: Database, user: ApiUser) -> None:
    body = {"nul": "\x00", "half": "\ud800", "wide": "🙂", "deep": [{"x": None}], "big": 2**70}
    conversation = make_conversation(database, user, make_sandbox(database, user))
    event = make_event(database, conversation, body=body)
    with database.reading() as session:
        assert session.get_one(type(event), event.seq).body == body


def test_fetch_is_retried_after_a_lost_connection(postgres_stores: PostgresStores) -> None:
    one, others = select(func.count(col(User.id))), "pid <> pg_backend_pid() AND datname = current_database()"
    with postgres_stores.fresh() as url:
        database, operator = Database(url), Database(url)
        for _ in range(2):
            assert list(database.fetch(one, {})) == [(0,)]
            with operator.engine.begin() as connection:
                cut = connection.exec_driver_sql(
                    f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"
                )
                assert cut.all()
        assert list(database.fetch(one, {})) == [(0,)]
        database.close()
        operator.close()


def test_failed_fetch_is_not_retried(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database.engine, "connect", None)
    for _ in range(2):
        with pytest.raises(DBAPIError, match="no_such") as failed:
            database.fetch(select(func.no_such(bindparam("value"))), {"value": "s3cr3t"})
        assert "s3cr3t" not in str(failed.value)


def test_fetch_from_a_lost_database_fails_as_every_read_does(tmp_path: Path) -> None:
    for url in (f"sqlite:///{tmp_path}/no/such.db", f"postgresql+psycopg://aw@/none?host={tmp_path}"):
        database = Database(url)
        with pytest.raises(OperationalError):
            database.fetch(select(User.id), {})
        database.close()


def test_connection_in_use_is_closed_when_it_is_returned(postgres_stores: PostgresStores) -> None:
    with postgres_stores.fresh() as url, (database := Database(url)).reading() as session:
        used: Any = session.connection().connection.dbapi_connection
        database.close()
        assert session.execute(text("SELECT 1")).scalar() == 1
    assert used.closed


def test_fetch_reads_what_was_committed_before_it(database: Database) -> None:
    by_name = select(User.id, User.created_at).where(col(User.name) == bindparam("name"))
    for number in range(3):
        with database.transaction() as session:
            session.add(User(name=f"user-{number}"))
        assert [len(database.fetch(by_name, {"name": f"user-{other}"})) for other in range(3)] == [
            int(other <= number) for other in range(3)
        ]

"""A stalled PostgreSQL, or one whose route is lost: no wait exceeds the configured timeouts."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo
from psycopg.pq import PGconn
from sqlalchemy import func, text
from sqlalchemy.exc import OperationalError
from sqlmodel import col, select

from shared.db import postgresql
from shared.db.database import Database
from shared.db.migrations import migrate
from shared.db.postgresql import OPTIONS, ResponseTimeout
from shared.models import User
from tests.services.postgres import Postgres, running_postgres
from tests.waiting import eventually

STATEMENT_SECONDS = 0.5
KERNEL = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
# The timeout of a statement, and the delay of a loaded machine.
MAX_SECONDS = STATEMENT_SECONDS + 0.5 + 3


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A server for these tests only: other tests' server must not stall."""
    with running_postgres() as server:
        migrate(server.url("postgres"))
        yield server


@pytest.fixture
def database(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A database with short timeouts."""
    monkeypatch.setattr(postgresql, "GRACE_SECONDS", 0.5)
    monkeypatch.setattr(postgresql, "PING_ANSWER_SECONDS", 0.5)
    monkeypatch.setitem(OPTIONS, "connect_timeout", 2)
    with closing(Database(server.url("postgres"), statement_seconds=STATEMENT_SECONDS)) as database:
        count(database)
        fetch(database)
        yield database


def count(database: Database) -> int:
    with database.reading() as session:
        return session.exec(select(func.count(col(User.id)))).one()


def fetch(database: Database) -> int:
    return int(database.fetch(select(func.count(col(User.id))), {})[0][0])


def add(database: Database) -> None:
    with database.transaction() as session:
        session.add(User(name=f"user-{time.monotonic_ns()}"))


@pytest.mark.parametrize("use", [count, fetch, add])
@pytest.mark.parametrize("idle", [False, True], ids=["in use", "idle"])
def test_statements_time_out_at_a_stalled_server(
    server: Postgres, database: Database, monkeypatch: pytest.MonkeyPatch, use: Callable[[Database], Any], idle: bool
) -> None:
    monkeypatch.setattr(postgresql, "PING_SECONDS", 0.0 if idle else 60.0)
    with server.frozen():
        began = time.monotonic()
        with pytest.raises(OperationalError):
            use(database)
        assert time.monotonic() - began < MAX_SECONDS
    use(database)


def test_transaction_ends_when_its_server_stalls(server: Postgres, database: Database) -> None:
    before = count(database)
    with pytest.raises(OperationalError) as failed:
        stall(server, database)
    assert isinstance(failed.value.orig, ResponseTimeout)
    # PostgreSQL may read the COMMIT before it detects that its client is gone.
    assert eventually(lambda: count(database)) in {before, before + 1}


def stall(server: Postgres, database: Database) -> None:
    with ExitStack() as stack, database.transaction() as session:
        session.add(User(name="lost"))
        session.flush()
        stack.enter_context(server.frozen())
        session.commit()


def test_server_timeout_comes_first_and_costs_no_connection(database: Database) -> None:
    with database.engine.connect() as connection:
        driver: Any = connection.connection.dbapi_connection
        with pytest.raises(OperationalError, match="statement timeout"):
            connection.execute(text("SELECT pg_sleep(10)"))
        assert not driver.closed
        connection.rollback()
        assert connection.execute(text("SELECT 1")).scalar_one() == 1


@pytest.mark.usefixtures("database")
def test_migration_connects_within_seconds_or_fails(server: Postgres) -> None:
    with server.frozen():
        began = time.monotonic()
        with pytest.raises(OperationalError):
            migrate(server.url("postgres"))
        assert time.monotonic() - began < MAX_SECONDS


@pytest.mark.usefixtures("database")
def test_new_connections_time_out(server: Postgres) -> None:
    new = Database(server.url("postgres"), statement_seconds=STATEMENT_SECONDS)
    with closing(new), server.frozen():
        for use in (count, fetch, add):
            began = time.monotonic()
            with pytest.raises(OperationalError):
                use(new)
            assert time.monotonic() - began < MAX_SECONDS


def test_connections_have_options_that_detect_a_lost_route(database: Database) -> None:
    with database.engine.connect() as connection:
        driver: Any = connection.connection.dbapi_connection
        used = driver.info.get_parameters()
    assert {name: used[name] for name in OPTIONS} == {name: str(value) for name, value in OPTIONS.items()}


def test_kernel_detects_a_lost_route_within_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        words = make_conninfo(host=host, port=port, **OPTIONS)
        connection = PGconn.connect_start(words.encode())
        with socket.socket(fileno=os.dup(connection.socket)) as one:
            found = [one.getsockopt(socket.IPPROTO_TCP, name) for name in KERNEL]
        connection.finish()
    assert found == [5, 2, 3, 10_000]

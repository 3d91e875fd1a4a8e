"""One database, opened once a process; every transaction is visible where it happens."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import ORMExecuteState
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection
from sqlmodel import Session

from shared.changes import change_feed
from shared.changes import recorder as change_recorder
from shared.changes.recorder import Change
from shared.db.postgresql import OPTIONS, SILENT, Timeouts, watch
from shared.observability import failpoints, metrics
from shared.sql.prepared import Rows, prepare
from shared.sql.write_slots import PLACES, WriteSlots

# The database is away; or all connections to it are in use, and have been for seconds.
UNAVAILABLE = (OperationalError, PoolTimeout)

Announce = Callable[[Collection[Change]], None]

# A process that stands still in the midst of a transaction holds its locks no longer than that: as long as its leases
# (`leases.MAX_SECONDS`). Nothing of ours takes as long between two statements, but a machine that is short of
# processors may: with 5 s, some did.
IDLE_SECONDS = 15.0
# For a row, or a table, that somebody else has locked one waits no longer than that, and then says so: whoever waits
# holds a connection.
LOCK_SECONDS = 5.0
# Nothing of ours takes as long; what does is a defect, or a database that is overwhelmed.
STATEMENT_SECONDS = 30.0
# For so long one waits for others to be done with their connections.
QUEUE_SECONDS = 10.0
# Connections for `fetch`: what it asks for waits for no lock.
MAX_READERS = 10


class Database:
    """SQLite or PostgreSQL behind the same two verbs: `transaction` writes, `reading` reads."""

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 10,
        announce: Announce | None = None,
        idle_seconds: float = IDLE_SECONDS,
        lock_seconds: float = LOCK_SECONDS,
        statement_seconds: float = STATEMENT_SECONDS,
        kept_for_reading: int = 0,
    ) -> None:
        """Open lazily: no connection is made before the first use.

        Args:
            url: SQLAlchemy URL; `sqlite:///…` or `postgresql+psycopg://…`.
            pool_size: so many connections to PostgreSQL at most, and `MAX_READERS` for `fetch`.
            announce: is told after each commit what it has changed; must neither wait nor raise.
            idle_seconds: after which PostgreSQL undoes a transaction in which nothing happens.
            lock_seconds: after which PostgreSQL gives up a statement that waits for a lock.
            statement_seconds: after which PostgreSQL gives up any statement; `GRACE_SECONDS` later, this process does.
            kept_for_reading: so many of the connections to PostgreSQL are for `reading` alone.
        """
        timeouts = Timeouts(idle_seconds, lock_seconds, statement_seconds)
        self.engine = _engine(url, pool_size, timeouts)
        self._announce = announce
        # SQLite's writers must lock at BEGIN: a reader that turns writer fails at once, whatever its timeout.
        self._writing = self.engine.execution_options(writing=True)
        self._readers = _readers(url, min(pool_size, MAX_READERS), timeouts)
        self._reading = _without_transactions(self.engine)
        self._single = _without_transactions(self._writing)
        # SQLite's writers wait for one lock, and hold up nobody who reads.
        self._slots = None if url.startswith("sqlite") else WriteSlots(pool_size - kept_for_reading)

    @contextmanager
    def transaction(self, *, needs_place: bool = False) -> Iterator[Session]:
        """A session that commits at the end of the block, or rolls back on an error.

        Args:
            needs_place: it may lock a spec and nodes, as others' transactions do: to find a place for a sandbox.
        """
        with self._slot(PLACES if needs_place else None), Session(self._writing, expire_on_commit=False) as session:
            with session.begin():
                yield session
                if changed := change_recorder.recorded_changes(session):
                    change_feed.append(session, changed)
                failpoints.before("database.commit")
            failpoints.after("database.commit")
            self._notify(session, changed)

    def execute_and_commit(self, statement: Any, values: Mapping[str, Any]) -> Rows:
        """The rows of a kept statement that is a transaction by itself: on PostgreSQL one message instead of three.

        What it changes of what users see, it must write into the change log itself, and then `notify`.
        """
        prepared = prepare(statement, self.engine.dialect.name)
        failpoints.before("database.commit")
        with self._slot(), self._single.begin() as connection:
            rows = connection.exec_driver_sql(prepared.text, prepared.write(values)).all()
        failpoints.after("database.commit")
        return prepared.read(rows)

    def notify(self, *changed: Change) -> None:
        """Announce what was committed."""
        if self._announce is not None and changed:
            self._announce(changed)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session for reads; it refuses to write."""
        with _Reader(self._reading, expire_on_commit=False, autoflush=False) as session:
            yield session

    def fetch(self, statement: Any, values: Mapping[str, Any], *, plan_anew: bool = False) -> Rows:
        """The rows of one kept SELECT by itself: the quick way for what is asked very often.

        A connection that was lost meanwhile is noticed by using it, and then another one is asked; no other error is a
        reason to ask again.

        Args:
            plan_anew: PostgreSQL is to look at the values first. It takes half a millisecond, where the best way for
                one value may be a hundred times as long for another.
        """
        prepared = prepare(statement, self.engine.dialect.name)
        parameters = prepared.write(values)
        options = {"prepare": False} if plan_anew and self.engine.dialect.name == "postgresql" else {}
        try:
            rows = self._fetch(prepared.text, parameters, options)
        except self._readers.dialect.loaded_dbapi.Error:
            with self.engine.connect() as connection:
                rows = connection.exec_driver_sql(prepared.text, parameters).all()
        return prepared.read(rows)

    def close(self) -> None:
        """Close every connection: those that are in use when they are let go of."""
        for engine in (self.engine, self._readers):
            event.listen(engine.pool, "checkin", _close)
            engine.dispose()

    def _slot(self, shared: str | None = None) -> AbstractContextManager[None]:
        return self._slots.slot(QUEUE_SECONDS, shared) if self._slots else nullcontext()

    def _error_of(self, error: Exception, text: str, connection: PoolProxiedConnection) -> Any:
        """The driver's error as it is if another connection may do better, and else as SQLAlchemy has it."""
        dialect = self._readers.dialect
        kind: Any = dialect.loaded_dbapi.Error
        is_lost = isinstance(error, kind) and dialect.is_disconnect(error, connection.dbapi_connection, None)
        if not isinstance(error, kind) or (is_lost and not isinstance(error, SILENT)):
            return error
        return self._as_sqlalchemy_has_it(error, text)

    def _as_sqlalchemy_has_it(self, error: Exception, text: str) -> Any:
        dialect = self._readers.dialect
        kind: Any = dialect.loaded_dbapi.Error
        return DBAPIError.instance(text, None, error, kind, hide_parameters=True, dialect=dialect)

    def _notify(self, session: Session, changed: Collection[Change]) -> None:
        metrics.count_starts(session)
        self.notify(*changed)

    def _fetch(self, text: str, parameters: dict[str, Any], options: dict[str, Any]) -> Any:
        connection = self._connect(text)
        try:
            cursor = connection.cursor()
            cursor.execute(text, parameters, **options)
            return cursor.fetchall()
        except Exception as error:  # noqa: BLE001 - it is raised again
            raised = self._error_of(error, text, connection)
            connection.invalidate()
            raise raised from None
        finally:
            connection.close()

    def _connect(self, text: str) -> PoolProxiedConnection:
        try:
            return self._readers.raw_connection()
        except SILENT as error:
            raise self._as_sqlalchemy_has_it(error, text) from None


class _Reader(Session):
    """A session for reads: on PostgreSQL each statement stands alone, so a write would be committed with it."""


@event.listens_for(_Reader, "before_flush")
def _refuse_flush(*_: Any) -> None:
    raise RuntimeError("a session for reads can't write")


@event.listens_for(_Reader, "do_orm_execute")
def _refuse_statement(state: ORMExecuteState) -> None:
    if state.is_insert or state.is_update or state.is_delete:
        raise RuntimeError("a session for reads can't write")


def _without_transactions(engine: Engine) -> Engine:
    """What READ COMMITTED shows a transaction's SELECTs, it shows them alone: two messages less for each.

    On SQLite a transaction costs nothing, and shows all of its SELECTs the same state.
    """
    if engine.dialect.name == "sqlite":
        return engine
    return engine.execution_options(isolation_level="AUTOCOMMIT")


def _readers(url: str, pool_size: int, timeouts: Timeouts) -> Engine:
    """Connections for `fetch`, which goes past SQLAlchemy's own."""
    if url.startswith("sqlite"):
        return _engine(url, pool_size, timeouts, paramstyle="named")
    return _engine(url, pool_size, timeouts, isolation_level="AUTOCOMMIT")


def _engine(url: str, pool_size: int, timeouts: Timeouts, **options: Any) -> Engine:
    if url.startswith("sqlite"):
        engine = create_engine(
            url,
            pool_size=pool_size,
            max_overflow=pool_size,
            hide_parameters=True,
            connect_args={"timeout": 10},
            **options,
        )
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    engine = create_engine(
        url,
        pool_size=pool_size,
        # To make one for a rush, and to close it after that, would cost the server as much as several claims.
        max_overflow=0,
        # The connection that was used last: it is the one whose statements the server has prepared already.
        pool_use_lifo=True,
        pool_recycle=1800,
        pool_timeout=QUEUE_SECONDS,
        hide_parameters=True,  # an error's text must not quote what was being stored
        connect_args=OPTIONS,
        **options,
    )
    watch(engine, timeouts)
    return engine


def _close(connection: Any, _record: ConnectionPoolEntry) -> None:
    """A pool that nobody has any more would let the connection fall, open as it is."""
    if connection is not None:
        connection.close()


def _configure_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # we begin transactions ourselves, below
    # FULL: with less, the machine's death takes back commits that were acknowledged (decision 47).
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=10000", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    writing = connection.get_execution_options().get("writing")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

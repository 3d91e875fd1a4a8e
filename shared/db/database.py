"""The database of a process. Code that writes opens its transaction explicitly."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from psycopg.errors import DiskFull, ReadOnlySqlTransaction
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import ORMExecuteState
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection
from sqlmodel import Session

from shared.changes import recorder as change_recorder
from shared.changes.recorder import Change
from shared.db.postgresql import OPTIONS, OUTDATED, SILENT, Timeouts, watch
from shared.observability import failpoints, metrics
from shared.sql.statements import Rows, prepare
from shared.sql.write_slots import PLACEMENTS, WriteSlots

# The API and the workers import the following names from here, and nothing from SQLAlchemy: SQL is written in `shared`.
__all__ = ["UNAVAILABLE", "Database", "Publish", "Session", "StoreConflict", "StoreError", "StoreTimeout"]

StoreError = SQLAlchemyError
StoreTimeout = PoolTimeout
# Another transaction has inserted the row first.
StoreConflict = IntegrityError
# The database is unavailable, or no connection became free before the timeout.
UNAVAILABLE = (OperationalError, PoolTimeout)

Publish = Callable[[Collection[Change]], None]


def is_disk_full(error: Exception) -> bool:
    """Whether the database responds, but has no disk space left to write to."""
    cause = getattr(error, "orig", None)
    return isinstance(cause, DiskFull) or getattr(cause, "sqlite_errorname", None) == "SQLITE_FULL"


def is_read_only(error: Exception) -> bool:
    """Whether the database responds, but rejects writes: for example a replica, or a server before a failover."""
    cause = getattr(error, "orig", None)
    is_refused = str(getattr(cause, "sqlite_errorname", "")).startswith("SQLITE_READONLY")
    return is_refused or isinstance(cause, ReadOnlySqlTransaction)


# A process suspended during a transaction holds its locks no longer than its leases (`leasing.limits`). This
# service never needs that long between two statements, but a machine short of CPU time may: some exceeded 5 s.
IDLE_SECONDS = 15.0
# The lock timeout for a row or a table that another transaction has locked. It is short, because a waiting transaction
# occupies a connection.
LOCK_SECONDS = 5.0
# No statement of this service takes that long, except through a bug or an overloaded database.
STATEMENT_SECONDS = 30.0
# The timeout for a free connection.
QUEUE_SECONDS = 10.0
# Connections for `fetch`, whose statements wait for no lock.
MAX_READERS = 10


class Database:
    """SQLite or PostgreSQL with the same interface: `transaction` writes, `reading` reads."""

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 10,
        publish: Publish | None = None,
        idle_seconds: float = IDLE_SECONDS,
        lock_seconds: float = LOCK_SECONDS,
        statement_seconds: float = STATEMENT_SECONDS,
        kept_for_reading: int = 0,
    ) -> None:
        """Configure the engines. No connection is opened before the first use.

        Args:
            url: SQLAlchemy URL; `sqlite:///…` or `postgresql+psycopg://…`.
            pool_size: max connections to PostgreSQL, in addition to up to `MAX_READERS` for `fetch`.
            publish: receives the changes of each commit; must neither wait nor raise.
            idle_seconds: after this time, PostgreSQL rolls back an idle transaction.
            lock_seconds: after this time, PostgreSQL cancels a statement that waits for a lock.
            statement_seconds: after this time, PostgreSQL cancels any statement; `GRACE_SECONDS` later, this process
                closes the connection.
            kept_for_reading: the number of PostgreSQL connections reserved for `reading`.
        """
        timeouts = Timeouts(idle_seconds, lock_seconds, statement_seconds)
        self.engine = _engine(url, pool_size, timeouts)
        self._publish = publish
        # SQLite's writers must lock at BEGIN: a reader that becomes a writer fails immediately, despite its timeout.
        self._writing = self.engine.execution_options(writing=True)
        self._readers = _readers(url, min(pool_size, MAX_READERS), timeouts)
        self._reading = _without_transactions(self.engine)
        self._single = _without_transactions(self._writing)
        # SQLite's writers wait for one lock, and block no readers.
        self._slots = None if url.startswith("sqlite") else WriteSlots(pool_size - kept_for_reading)

    @contextmanager
    def transaction(self, *, may_place: bool = False) -> Iterator[Session]:
        """A session that commits at the end of the block, or rolls back on an error.

        Args:
            may_place: the transaction may lock specs and nodes, as all placements do.
        """
        with self._slot(PLACEMENTS if may_place else None), Session(self._writing, expire_on_commit=False) as session:
            with session.begin():
                yield session
                changed = change_recorder.write_recorded(session)
                failpoints.before("database.commit")
            failpoints.after("database.commit")
            self._notify(session, changed)

    def execute_and_commit(self, statement: Any, values: Mapping[str, Any]) -> Rows:
        """Execute a prepared statement as one transaction and return its rows. PostgreSQL gets one message, not three.

        If it changes what users see, the statement itself must append to the change feed; then call `notify`.
        """
        prepared = prepare(statement, self.engine.dialect.name)
        with failpoints.around("database.commit"), self._slot(), self._single.begin() as connection:
            rows = connection.exec_driver_sql(prepared.text, prepared.write(values)).all()
        return prepared.read(rows)

    def notify(self, *changed: Change) -> None:
        """Publish committed changes."""
        if self._publish is not None and changed:
            self._publish(changed)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session for reads. Writes raise RuntimeError."""
        with _Reader(self._reading, expire_on_commit=False, autoflush=False) as session:
            yield session

    def fetch(self, statement: Any, values: Mapping[str, Any], *, custom_plan: bool = False) -> Rows:
        """The rows of one prepared SELECT outside a session: the fast path for frequent queries.

        If the connection was lost, the statement is retried on another one. Other errors are not retried.

        Args:
            custom_plan: let PostgreSQL plan for these values. Planning costs half a millisecond, but the best plan
                for one value may take a hundred times as long for another.
        """
        prepared = prepare(statement, self.engine.dialect.name)
        parameters = prepared.write(values)
        options = {"prepare": False} if custom_plan and self.engine.dialect.name == "postgresql" else {}
        try:
            rows = self._fetch(prepared.text, parameters, options)
        except self._readers.dialect.loaded_dbapi.Error:
            with self.engine.connect() as connection:
                rows = connection.exec_driver_sql(prepared.text, parameters).all()
        return prepared.read(rows)

    def ping(self) -> None:
        """Send a query that reads nothing."""
        with self.reading() as session:
            session.connection().execute(text("SELECT 1"))

    def close(self) -> None:
        """Close every connection; those in use are closed when they are returned."""
        for engine in (self.engine, self._readers):
            event.listen(engine.pool, "checkin", _close)
            engine.dispose()

    def _slot(self, shared: str | None = None) -> AbstractContextManager[None]:
        return self._slots.slot(QUEUE_SECONDS, shared) if self._slots else nullcontext()

    def _error_of(self, error: Exception, text: str, connection: PoolProxiedConnection) -> Any:
        """The driver's error if another connection may succeed, otherwise the error wrapped by SQLAlchemy."""
        dialect = self._readers.dialect
        kind: Any = dialect.loaded_dbapi.Error
        is_lost = isinstance(error, kind) and dialect.is_disconnect(error, connection.dbapi_connection, None)
        if not isinstance(error, kind) or isinstance(error, OUTDATED) or (is_lost and not isinstance(error, SILENT)):
            return error
        return self._wrap_error(error, text)

    def _wrap_error(self, error: Exception, text: str) -> Any:
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
        except Exception as error:  # noqa: BLE001 - it is reraised
            raised = self._error_of(error, text, connection)
            connection.invalidate()
            raise raised from None
        finally:
            connection.close()

    def _connect(self, text: str) -> PoolProxiedConnection:
        try:
            return self._readers.raw_connection()
        except SILENT as error:
            raise self._wrap_error(error, text) from None


class _Reader(Session):
    """A session for reads. On PostgreSQL each statement is a transaction, so a write would commit immediately."""


@event.listens_for(_Reader, "before_flush")
def _reject_flush(*_: Any) -> None:
    raise RuntimeError("cannot write in a session for reads")


@event.listens_for(_Reader, "do_orm_execute")
def _reject_statement(state: ORMExecuteState) -> None:
    if state.is_insert or state.is_update or state.is_delete:
        raise RuntimeError("cannot write in a session for reads")


def _without_transactions(engine: Engine) -> Engine:
    """The engine in autocommit mode. In READ COMMITTED, reads see the same without a transaction and save two messages.

    On SQLite a transaction costs nothing, and gives all its SELECTs the same snapshot.
    """
    if engine.dialect.name == "sqlite":
        return engine
    return engine.execution_options(isolation_level="AUTOCOMMIT")


def _readers(url: str, pool_size: int, timeouts: Timeouts) -> Engine:
    """The engine of `fetch`, which bypasses SQLAlchemy's connections."""
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
        event.listen(engine, "do_connect", _create_privately)
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    engine = create_engine(
        url,
        pool_size=pool_size,
        # Opening a connection for a burst and closing it afterwards costs the server as much as a few claims.
        max_overflow=0,
        # Prefer the most recently used connection: the server has its statements prepared.
        pool_use_lifo=True,
        pool_recycle=1800,
        pool_timeout=QUEUE_SECONDS,
        hide_parameters=True,  # an error's text must not quote stored values
        connect_args=OPTIONS,
        **options,
    )
    watch(engine, timeouts)
    return engine


def _close(connection: Any, _record: ConnectionPoolEntry) -> None:
    """Close a returned connection: a disposed pool would drop it without closing it."""
    if connection is not None:
        connection.close()


def _create_privately(_dialect: Any, _record: Any, arguments: Any, _options: Any) -> None:
    """Create a missing file for its owner alone, before SQLite creates one that every user may read."""
    with suppress(OSError):  # it exists, or SQLite's own error follows
        os.close(os.open(arguments[0], os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _configure_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # `_begin_sqlite` begins transactions
    # FULL: with less, a machine's crash loses acknowledged commits (decision 47).
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=10000", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    writing = connection.get_execution_options().get("writing")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

"""Connections to PostgreSQL with client-side timeouts, for servers that stall or disappear without closing them.

PostgreSQL's own timeouts work only while the server does. So each connection has a timeout for every response
(decision 48).
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg
from psycopg.errors import (
    ConnectionTimeout,
    FeatureNotSupported,
    IdleInTransactionSessionTimeout,
    ReadOnlySqlTransaction,
)
from psycopg.pq import TransactionStatus
from sqlalchemy import Engine, ExceptionContext, event
from sqlalchemy.exc import DisconnectionError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

# The client's timeout exceeds the server's by this time: the server's own error is preferable.
GRACE_SECONDS = 5.0
# A connection used within this time is assumed alive: a ping costs as much as a query. If it is dead, its first use
# fails, and the pool discards all connections of its age with it.
PING_SECONDS = 1.0
# The timeout of a ping, which takes a healthy server less than a millisecond.
PING_ANSWER_SECONDS = 3.0
USED_AT = "used_at"
# A lost route is detected after 10 s with unsent data, and after 11 s without. On a Unix socket libpq ignores all of
# these but the first.
OPTIONS: dict[str, Any] = {
    # Whatever the server, the database or the role has as its default.
    "client_encoding": "utf8",
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
# The time zone and the style of all times that are read. In another time zone, Python cannot represent the first and
# the last day of the calendar. The driver can read no other style.
FORMAT = "SET timezone = 'UTC'; SET datestyle = 'ISO'"


class Timeouts(NamedTuple):
    """The server's timeouts for this process, in seconds."""

    idle: float
    lock: float
    statement: float

    @property
    def sql(self) -> str:
        """The SQL that configures a new connection."""
        names = ("idle_in_transaction_session_timeout", "lock_timeout", "statement_timeout")
        return "; ".join(f"SET {name} = {round(value * 1000)}" for name, value in zip(names, self, strict=True))


class ResponseTimeout(psycopg.OperationalError):
    """The server did not respond before the timeout; the connection is closed."""


# PostgreSQL rejects a statement that this connection has prepared, since a migration has changed the type of a column.
OUTDATED = FeatureNotSupported
# Errors of an unresponsive server. They are not retried: the second attempt would wait as long as the first.
SILENT = (ConnectionTimeout, ResponseTimeout)


class TimeoutConnection(psycopg.Connection[Any]):
    """A connection that closes if a response takes longer than `response_seconds`."""

    response_seconds = 10.0

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Wait until an exchange with the server is complete.

        Raises:
            ResponseTimeout: there was no response before the timeout.
        """
        try:
            return super().wait(gen, interval, self.response_seconds if timeout is None else timeout)
        except psycopg.OperationalError:
            if self.pgconn.transaction_status != TransactionStatus.ACTIVE:
                raise  # a response of the server, or a lost connection
            self.pgconn.finish()
            raise ResponseTimeout("PostgreSQL does not respond") from None

    @contextmanager
    def response_timeout(self, seconds: float) -> Iterator[None]:
        """Use another response timeout in this block."""
        usual, self.response_seconds = self.response_seconds, seconds
        try:
            yield
        finally:
            self.response_seconds = usual


def watch(engine: Engine, timeouts: Timeouts) -> None:
    """Apply these timeouts to all connections of an engine that has opened none yet."""

    def connect(_dialect: Any, _record: Any, arguments: Any, options: Any) -> TimeoutConnection:
        return TimeoutConnection.connect(*arguments, **options)

    def configure(connection: TimeoutConnection, _record: Any) -> None:
        connection.response_seconds = timeouts.statement + GRACE_SECONDS
        _configure(connection, timeouts)

    event.listen(engine, "do_connect", connect)
    event.listen(engine, "connect", configure)
    event.listen(engine, "checkin", _record_use)
    event.listen(engine, "checkout", _ping)
    event.listen(engine, "handle_error", _raise_as_unavailable)


def _configure(connection: TimeoutConnection, timeouts: Timeouts) -> None:
    without_transactions = connection.autocommit
    connection.autocommit = True  # a rollback would undo settings made in a transaction
    with connection.response_timeout(PING_ANSWER_SECONDS):
        connection.execute(timeouts.sql.encode())
        connection.execute(FORMAT)
    connection.autocommit = without_transactions


def _record_use(_connection: Any, record: ConnectionPoolEntry) -> None:
    record.info[USED_AT] = time.monotonic()


def _ping(connection: TimeoutConnection, record: ConnectionPoolEntry, _proxy: Any) -> None:
    """Check that a connection that was idle for a while is alive."""
    if time.monotonic() - record.info.get(USED_AT, 0.0) < PING_SECONDS:
        return
    try:
        with connection.response_timeout(PING_ANSWER_SECONDS):
            connection.execute("")
            connection.rollback()
    except psycopg.Error as error:
        raise DisconnectionError from error


def _raise_as_unavailable(context: ExceptionContext) -> None:
    """Treat a rolled back idle transaction, outdated statements, and a server without writes as a lost connection.

    After a failover, connections to the former server may stay open: another one may lead to the new server. A new
    connection has prepared no statements.
    """
    if isinstance(context.original_exception, IdleInTransactionSessionTimeout | ReadOnlySqlTransaction | OUTDATED):
        context.is_disconnect = True
        raise OperationalError(context.statement, None, context.original_exception, hide_parameters=True)

"""Connections to PostgreSQL that end: a server that stalls, or has gone without a word, holds nobody for long.

PostgreSQL's own timeouts live in the server. So each connection has one of its own, for every answer (decision 48).
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg
from psycopg.errors import ConnectionTimeout, IdleInTransactionSessionTimeout
from psycopg.pq import TransactionStatus
from sqlalchemy import Engine, ExceptionContext, event
from sqlalchemy.exc import DisconnectionError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

# How much later than the server a client gives up a statement: the server's own answer is the better one.
GRACE_SECONDS = 5.0
# A connection that was used since is taken for alive: to ask costs as much as a query. If it is not, whoever uses it
# first gets an error, and all others of its age are given up with it.
PING_SECONDS = 1.0
# The longest wait for the answer to a ping, which costs a server that works less than a millisecond.
PING_ANSWER_SECONDS = 3.0
USED_AT = "used_at"
# A server whose route is lost is noticed after 10 s with something unsent, and after 11 s with nothing to send. On a
# Unix socket libpq leaves all but the first of these aside.
OPTIONS: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


class Timeouts(NamedTuple):
    """After how many seconds PostgreSQL gives up what this process asks of it."""

    idle: float
    lock: float
    statement: float

    @property
    def words(self) -> str:
        """What is said on each new connection."""
        names = ("idle_in_transaction_session_timeout", "lock_timeout", "statement_timeout")
        return "; ".join(f"SET {name} = {round(value * 1000)}" for name, value in zip(names, self, strict=True))


class Unanswered(psycopg.OperationalError):
    """The server did not answer in time; the connection is closed."""


# There is no point in asking such a server once more: the second wait would be as long as the first.
SILENT = (ConnectionTimeout, Unanswered)


class PunctualConnection(psycopg.Connection[Any]):
    """A connection that is closed when an answer takes longer than `answer_seconds`."""

    answer_seconds = 10.0

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Carry an exchange with the server to its end.

        Raises:
            Unanswered: it took too long.
        """
        try:
            return super().wait(gen, interval, self.answer_seconds if timeout is None else timeout)
        except psycopg.OperationalError:
            if self.pgconn.transaction_status != TransactionStatus.ACTIVE:
                raise  # that was an answer, or the connection is lost
            self.pgconn.finish()
            raise Unanswered("PostgreSQL does not answer") from None

    @contextmanager
    def answering_within(self, seconds: float) -> Iterator[None]:
        """Have the server answer sooner in this block."""
        usual, self.answer_seconds = self.answer_seconds, seconds
        try:
            yield
        finally:
            self.answer_seconds = usual


def watch(engine: Engine, timeouts: Timeouts) -> None:
    """Have all connections of this engine, which has made none yet, keep these timeouts."""

    def connect(_dialect: Any, _record: Any, arguments: Any, options: Any) -> PunctualConnection:
        return PunctualConnection.connect(*arguments, **options)

    def configure(connection: PunctualConnection, _record: Any) -> None:
        connection.answer_seconds = timeouts.statement + GRACE_SECONDS
        _configure(connection, timeouts)

    event.listen(engine, "do_connect", connect)
    event.listen(engine, "connect", configure)
    event.listen(engine, "checkin", _note_use)
    event.listen(engine, "checkout", _ping)
    event.listen(engine, "handle_error", _call_idleness_unavailability)


def _configure(connection: PunctualConnection, timeouts: Timeouts) -> None:
    without_transactions = connection.autocommit
    connection.autocommit = True  # what is set in a transaction is undone with it
    with connection.answering_within(PING_ANSWER_SECONDS):
        connection.execute(timeouts.words.encode())
        # Times are read in this zone: in another one, Python has no words for the first and the last day of the
        # calendar.
        connection.execute("SET timezone = 'UTC'")
    connection.autocommit = without_transactions


def _note_use(_connection: Any, record: ConnectionPoolEntry) -> None:
    record.info[USED_AT] = time.monotonic()


def _ping(connection: PunctualConnection, record: ConnectionPoolEntry, _proxy: Any) -> None:
    """See whether a connection is alive that nobody has used for a while."""
    if time.monotonic() - record.info.get(USED_AT, 0.0) < PING_SECONDS:
        return
    try:
        with connection.answering_within(PING_ANSWER_SECONDS):
            connection.execute("")
            connection.rollback()
    except psycopg.Error as error:
        raise DisconnectionError from error


def _call_idleness_unavailability(context: ExceptionContext) -> None:
    """Who stood still for too long has lost its connection, as if the database had gone away."""
    if isinstance(context.original_exception, IdleInTransactionSessionTimeout):
        context.is_disconnect = True
        raise OperationalError(context.statement, None, context.original_exception, hide_parameters=True)

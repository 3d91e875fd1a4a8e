"""Reading the database's clock: once, or periodically in a thread of its own."""

import threading
from datetime import UTC, datetime

import structlog
from sqlalchemy import func
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session, select

from shared import clock
from shared.db.database import Database
from shared.models.columns import UtcDateTime

log = structlog.get_logger()

# The time between two readings. A change of the database's own clock takes effect within that time.
PAUSE_SECONDS = 10.0


def sync_clock(database: Database) -> None:
    """Read the database's clock and use it as the time of this process.

    Raises:
        SQLAlchemyError: the database is unavailable.
    """
    with database.reading() as session:
        session.connection()  # connecting may take longer than the query
        sent_at = clock.read_ticks()
        time = _read_time(session)
        clock.follow(time, sent_at, clock.read_ticks())


def start_clock_sync(database: Database) -> threading.Event:
    """Read the clock once, then as `keep_clock_synced` does. Log an unavailable database, and retry later."""
    try:
        sync_clock(database)
    except SQLAlchemyError as error:
        log.warning("clock_not_read", error=type(error).__name__)
    return keep_clock_synced(database)


def keep_clock_synced(database: Database) -> threading.Event:
    """Read the clock periodically in a thread, until the returned event is set. Log a wrong machine clock."""
    ended = threading.Event()
    threading.Thread(target=_keep_following, args=[database, ended], name="clock", daemon=True).start()
    return ended


def _keep_following(database: Database, ended: threading.Event) -> None:
    while not ended.is_set():
        try:
            sync_clock(database)
        except Exception as error:
            # An unavailable database is one log line; a bug in this service is logged with its traceback.
            trace = not isinstance(error, SQLAlchemyError)
            log.warning("clock_not_read", error=type(error).__name__, exc_info=trace)
        if off := clock.machine_error():
            log.warning("clock_off", ahead_seconds=round(off.total_seconds(), 1))
        ended.wait(PAUSE_SECONDS)


def _read_time(session: Session) -> datetime:
    if session.get_bind().dialect.name == "sqlite":
        text = session.exec(select(func.strftime("%Y-%m-%d %H:%M:%f", "now"))).one()
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    # now() is the time at which the transaction began.
    time: datetime = session.exec(select(func.clock_timestamp(type_=UtcDateTime()))).one()
    return time

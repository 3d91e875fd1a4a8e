"""Reading the database's clock: once, or again and again in a thread of its own."""

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

# Between two readings. A database whose own clock is set is followed within that time.
PAUSE_SECONDS = 10.0


def follow_database(database: Database) -> None:
    """Read the database's clock once: from here on it is the time of this process.

    Raises:
        SQLAlchemyError: the database is away.
    """
    with database.reading() as session:
        session.connection()  # to get one may take longer than to ask
        asked_at = clock.read_ticks()
        time = _read_time(session)
        clock.follow(time, asked_at, clock.read_ticks())


def begin_following(database: Database) -> threading.Event:
    """Read it once, and then as `keep_following` does. A database that is away is logged, and asked again later."""
    try:
        follow_database(database)
    except SQLAlchemyError as error:
        log.warning("clock_not_read", error=type(error).__name__)
    return keep_following(database)


def keep_following(database: Database) -> threading.Event:
    """Read it again and again in a thread of its own, until the event is set. A wrong machine clock is logged."""
    ended = threading.Event()
    threading.Thread(target=_keep_following, args=[database, ended], name="clock", daemon=True).start()
    return ended


def _keep_following(database: Database, ended: threading.Event) -> None:
    while not ended.is_set():
        try:
            follow_database(database)
        except Exception as error:
            # A database that is away is told in a line; where a defect of ours is, the trace tells.
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
    found: datetime = session.exec(select(func.clock_timestamp(type_=UtcDateTime()))).one()
    return found

"""Times in rows after the database's clock was set back (decision 12)."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement

from shared.clock import now

# How far the times of two processes may differ while the database's clock is not set (`shared.clock.TOLERATED`), with a
# margin. A later time was written before the clock was set back.
TOLERATED = timedelta(seconds=2)


def is_ahead(column: Any) -> ColumnElement[bool]:
    """The condition of a time that was written before the clock was set back: it counts as older than all others."""
    ahead: ColumnElement[bool] = column > latest()
    return ahead


def is_recent(time: datetime, wait: timedelta) -> bool:
    """Whether a time is less than `wait` ago. One that is yet to come was written before the clock was set back."""
    return now() - wait < time <= latest()


def latest() -> datetime:
    """The latest present that another process may have written."""
    return now() + TOLERATED

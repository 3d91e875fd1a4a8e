"""The only source of the current time: the database's clock wherever it is known (decision 46).

Clocks of machines differ, and one machine writes rows that another one compares with its own time. So each process
reads the database's clock periodically (`shared.db.database_clock`). While this machine's clock agrees with the last
reading, `now` uses the machine's clock. Otherwise `now` is the reading plus the time elapsed since, measured with a
clock that cannot be set.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

# The difference that the clocks of synchronized machines may have, with a margin.
TOLERATED = timedelta(seconds=0.5)
# A worker takes no work while its machine's clock differs from the database's by more than this.
MAX_ERROR = timedelta(seconds=5)


class _Reading(NamedTuple):
    """The database's time at one moment.

    Args:
        ticks: the moment, in seconds of `read_ticks`.
        uncertainty: the maximum error of that moment, in either direction.
    """

    time: datetime
    ticks: float
    uncertainty: timedelta


_reading: _Reading | None = None


def now() -> datetime:
    """The current time in UTC, with microseconds: by the database's clock if it was read."""
    machine, database = machine_time(), _database_time()
    return machine if database is None or abs(machine - database) <= _tolerance() else database


def after(seconds: float) -> datetime:
    """The time that many seconds from now, in UTC."""
    return now() + timedelta(seconds=seconds)


def machine_time() -> datetime:
    """The time in UTC by this machine's clock. Use it only to measure that clock's error."""
    return datetime.now(UTC)


def read_ticks() -> float:
    """Seconds since the machine booted, including the time it was suspended. This clock is never adjusted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def follow(database_time: datetime, sent_at: float, received_at: float) -> None:
    """Store a reading of the database's clock; `sent_at` and `received_at` are ticks.

    A slow reading does not replace a more certain one, unless the two contradict each other.
    """
    global _reading  # noqa: PLW0603 - a process has one time
    half = (received_at - sent_at) / 2
    reading = _Reading(database_time, sent_at + half, timedelta(seconds=half))
    if _reading is None or reading.uncertainty <= TOLERATED or not _agrees(reading, _reading):
        _reading = reading


def machine_error() -> timedelta:
    """How far this machine's clock is ahead of the database's; zero while they agree, or without a reading."""
    database = _database_time()
    error = machine_time() - database if database is not None else timedelta(0)
    return error if abs(error) > _tolerance() else timedelta(0)


def is_wrong() -> bool:
    """Whether the error of this machine's clock is too large for a worker."""
    return abs(machine_error()) > MAX_ERROR


def describe_error() -> str:
    """The error of this machine's clock, and how to correct it."""
    seconds = machine_error().total_seconds()
    direction = "ahead of" if seconds > 0 else "behind"
    return (
        f"the clock of its worker's machine is {abs(seconds):.0f} s {direction} the database's: "
        "synchronize it, for example with NTP; the worker takes no work until then"
    )


def _database_time() -> datetime | None:
    return _at(_reading, read_ticks()) if _reading is not None else None


def _at(reading: _Reading, ticks: float) -> datetime:
    return reading.time + timedelta(seconds=ticks - reading.ticks)


def _agrees(one: _Reading, other: _Reading) -> bool:
    return abs(one.time - _at(other, one.ticks)) <= one.uncertainty + other.uncertainty + TOLERATED


def _tolerance() -> timedelta:
    return TOLERATED + (_reading.uncertainty if _reading is not None else timedelta(0))

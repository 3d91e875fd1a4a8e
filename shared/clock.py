"""The one place that asks for the time: the database's, wherever it is known (decision 46).

Machines disagree about the time, and rows are written by one of them and judged by another. So each process reads the
database's clock now and then (`shared.db.database_clock`). While this machine's clock agrees with that reading, it is
used; once it does not, the time is the reading and what has passed since, by a clock that nobody sets.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

# What machines whose clocks are kept in time differ by, with something to spare.
TOLERATED = timedelta(seconds=0.5)
# A worker whose clock is further off than that takes no work.
MAX_ERROR = timedelta(seconds=5)


class _Reading(NamedTuple):
    """The database's time, as it was at one moment.

    Args:
        ticks: that moment, seconds of `read_ticks`.
        uncertainty: how much earlier or later it may have been.
    """

    time: datetime
    ticks: float
    uncertainty: timedelta


_reading: _Reading | None = None


def now() -> datetime:
    """The current time in UTC, with microseconds: by the database's clock, if it was read."""
    here, there = machine_time(), _database_time()
    return here if there is None or abs(here - there) <= _tolerance() else there


def after(seconds: float) -> datetime:
    """The time so many seconds from now, in UTC."""
    return now() + timedelta(seconds=seconds)


def machine_time() -> datetime:
    """The time in UTC by this machine's clock. Only who asks how wrong that clock is wants it."""
    return datetime.now(UTC)


def read_ticks() -> float:
    """Seconds since the machine was started: nobody sets them, and they pass while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def follow(database_time: datetime, asked_at: float, answered_at: float) -> None:
    """Take over a reading of the database's clock; `asked_at` and `answered_at` are ticks.

    One that took long to get does not replace one that is more certain, unless they contradict each other.
    """
    global _reading  # noqa: PLW0603 - a process has one time
    half = (answered_at - asked_at) / 2
    found = _Reading(database_time, asked_at + half, timedelta(seconds=half))
    if _reading is None or found.uncertainty <= TOLERATED or not _agrees(found, _reading):
        _reading = found


def follow_nothing() -> None:
    """Forget every reading: this machine's clock is used."""
    global _reading  # noqa: PLW0603 - as above
    _reading = None


def machine_error() -> timedelta:
    """How far this machine's clock is ahead of the database's; zero while they agree, or nobody knows."""
    there = _database_time()
    error = machine_time() - there if there is not None else timedelta(0)
    return error if abs(error) > _tolerance() else timedelta(0)


def is_wrong() -> bool:
    """Whether this machine's clock is too far off for a worker."""
    return abs(machine_error()) > MAX_ERROR


def describe_error() -> str:
    """How far this machine's clock is off, and what to do about it."""
    seconds = machine_error().total_seconds()
    direction = "ahead of" if seconds > 0 else "behind"
    return (
        f"the clock of its worker's machine is {abs(seconds):.0f} s {direction} the database's: set it, with NTP for "
        "example; until then the worker takes no work"
    )


def _database_time() -> datetime | None:
    return _at(_reading, read_ticks()) if _reading is not None else None


def _at(reading: _Reading, ticks: float) -> datetime:
    return reading.time + timedelta(seconds=ticks - reading.ticks)


def _agrees(one: _Reading, other: _Reading) -> bool:
    return abs(one.time - _at(other, one.ticks)) <= one.uncertainty + other.uncertainty + TOLERATED


def _tolerance() -> timedelta:
    return TOLERATED + (_reading.uncertainty if _reading is not None else timedelta(0))

"""The one place that asks for the time."""

from datetime import UTC, datetime, timedelta


def now() -> datetime:
    """The current time in UTC, with microseconds."""
    return datetime.now(UTC)


def after(seconds: float) -> datetime:
    """The time so many seconds from now, in UTC."""
    return now() + timedelta(seconds=seconds)

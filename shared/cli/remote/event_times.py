"""The times of events as agent servers report them: in any year, and in any form of ISO 8601."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from shared.clock import now

# How many of the last events are requested again, because reports of events may overtake each other.
OVERLAP = 20
LATEST = datetime.max.replace(tzinfo=UTC)


def find_cursor(seen: Iterable[Mapping[str, Any]]) -> datetime | None:
    """The time from which to request events; None: from the first one.

    Events with a time in the future are ignored: the service stores them under the time at which it received them.
    """
    current = now()
    past = sorted(time for event in seen if (time := time_of(event)) <= current)
    return past[-OVERLAP:][0] if past else None


def time_of(event: Mapping[str, Any]) -> datetime:
    """The time of an event, or the latest possible one if it is invalid or out of range. Without a zone, it is UTC."""
    try:
        time = datetime.fromisoformat(event["timestamp"])
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (KeyError, TypeError, ValueError, OverflowError):
        return LATEST

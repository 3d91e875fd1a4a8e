"""The times of events, which agent servers state: they may be in any year, and in any form of ISO 8601."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from shared.clock import now

# Reports of events overtake each other: the last ones are requested again.
OVERLAP = 20
LATEST = datetime.max.replace(tzinfo=UTC)


def find_cursor(seen: Iterable[Mapping[str, Any]]) -> datetime | None:
    """The time from which to request events; None: from the first one.

    Events that state a time in the future do not count: the service files them under the time of their reception.
    """
    current = now()
    past = sorted(time for event in seen if (time := time_of(event)) <= current)
    return past[-OVERLAP:][0] if past else None


def time_of(event: Mapping[str, Any]) -> datetime:
    """The time that an event states, or the latest possible one if that is out of range. Without a zone it is UTC."""
    try:
        time = datetime.fromisoformat(event["timestamp"])
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (KeyError, TypeError, ValueError, OverflowError):
        return LATEST

"""The next deadline of a sandbox. Pure functions: no store, no clock (decision 17).

An idle sandbox is paused (memory kept), then stopped (files kept), then deleted. Each of these counts from the one
before it, or from the last activity since. A sandbox also expires at a certain age, even while it is active.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from shared.errors import Invalid
from shared.states import DeadlineAction, Desired, PauseKind, Status

FIELDS = ("freeze_after_seconds", "stop_after_seconds", "delete_after_seconds", "max_age_seconds")
# In a sandbox's own columns, where NULL means the spec's value.
NEVER = 0
MAX_SECONDS = 10 * 365 * 24 * 60 * 60
UNITS = {"s": 1, "m": 60, "h": 60 * 60, "d": 24 * 60 * 60}


@dataclass(frozen=True)
class Durations:
    """The deadlines in force for one sandbox, in seconds. None means never."""

    freeze_after_seconds: int | None = None
    stop_after_seconds: int | None = None
    delete_after_seconds: int | None = None
    max_age_seconds: int | None = None


@dataclass(frozen=True)
class Situation:
    """The columns of a sandbox that its deadlines depend on."""

    desired: str
    status: str
    pause_kind: str | None
    # Whether a worker has reconciled the newest desired state.
    is_observed: bool
    created_at: datetime
    settled_at: datetime
    last_active_at: datetime


@dataclass(frozen=True)
class Deadline:
    """The next action that the sweep takes on a sandbox without activity."""

    at: datetime
    does: DeadlineAction


def combine(own: Mapping[str, int | None], spec: Mapping[str, int | None]) -> Durations:
    """Return the deadlines in force: the sandbox's own where it has one, else its spec's."""
    return Durations(**{name: (spec[name] if own[name] is None else own[name]) or None for name in FIELDS})


def expiry(created_at: datetime, durations: Durations) -> datetime | None:
    """Return when the sandbox is deleted even if it is active. None means never."""
    return _after(created_at, durations.max_age_seconds)


def next_deadline(situation: Situation, durations: Durations) -> Deadline | None:
    """Return the earliest deadline, or None if none applies in this situation."""
    deleted = (Status.DELETING, Status.DELETED)
    if situation.desired == Desired.DELETED or situation.status in deleted:
        return None
    ends = expiry(situation.created_at, durations)
    found = [_idle(situation, durations), Deadline(ends, DeadlineAction.EXPIRE) if ends else None]
    return min((deadline for deadline in found if deadline), key=lambda deadline: deadline.at, default=None)


def parse_duration(text: str) -> int | None:
    """Parse `90`, `90s`, `30m`, `12h` or `7d` to seconds, and `never` to None.

    Raises:
        Invalid: the text is none of these, zero, or more than ten years.
    """
    if text == "never":
        return None
    found = re.fullmatch(r"([0-9]{1,12})([smhd]?)", text)
    seconds = int(found[1]) * UNITS[found[2] or "s"] if found else 0
    if not 1 <= seconds <= MAX_SECONDS:
        raise Invalid(f"use a time like 90s, 30m, 12h or 7d, at most ten years, or never, not {text!r}")
    return seconds


def show_duration(seconds: int | None) -> str:
    """Format seconds in the shortest form that `parse_duration` reads."""
    if seconds is None:
        return "never"
    unit = next(unit for unit in reversed(UNITS) if seconds % UNITS[unit] == 0)
    return f"{seconds // UNITS[unit]}{unit}"


def _idle(situation: Situation, durations: Durations) -> Deadline | None:
    # A desired state that is being reconciled is left alone: the state it leads to has a deadline of its own.
    if not situation.is_observed:
        return None
    action, seconds = _next_action(situation, durations)
    at = _after(max(situation.settled_at, situation.last_active_at), seconds)
    return Deadline(at, action) if at else None


def _next_action(situation: Situation, durations: Durations) -> tuple[DeadlineAction, int | None]:
    match situation.status:
        case Status.RUNNING:
            return DeadlineAction.FREEZE, durations.freeze_after_seconds
        case Status.PAUSED if situation.pause_kind == PauseKind.FROZEN:
            return DeadlineAction.STOP, durations.stop_after_seconds
        case Status.PAUSED | Status.ERROR:
            return DeadlineAction.DELETE, durations.delete_after_seconds
        case _:
            return DeadlineAction.FREEZE, None


def _after(at: datetime, seconds: int | None) -> datetime | None:
    return at + timedelta(seconds=seconds) if seconds else None

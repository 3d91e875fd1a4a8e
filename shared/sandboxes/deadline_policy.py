"""Deadlines of sandboxes: what comes next, and when. Pure: no store, no clock (decision 17).

A sandbox that is idle is frozen, then stopped, then deleted; each step counts from the one before it, or from the last
use since. Apart from that, it expires at a certain age, whatever goes on in it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from shared.errors import Invalid
from shared.states import DeadlineAction, Desired, PauseKind, Status

FIELDS = ("freeze_after_seconds", "stop_after_seconds", "delete_after_seconds", "max_age_seconds")
# In a sandbox's own columns, where an empty one means its spec's.
NEVER = 0
MAX_SECONDS = 10 * 365 * 24 * 60 * 60
UNITS = {"s": 1, "m": 60, "h": 60 * 60, "d": 24 * 60 * 60}


@dataclass(frozen=True)
class Durations:
    """The deadlines in force for one sandbox, in seconds; None: never."""

    freeze_after_seconds: int | None = None
    stop_after_seconds: int | None = None
    delete_after_seconds: int | None = None
    max_age_seconds: int | None = None


@dataclass(frozen=True)
class Situation:
    """What of a sandbox its deadlines depend on."""

    desired: str
    status: str
    pause_kind: str | None
    # Whether the last wish was carried out.
    answered: bool
    created_at: datetime
    settled_at: datetime
    last_active_at: datetime


@dataclass(frozen=True)
class Deadline:
    """The next thing that happens to a sandbox if nobody uses it."""

    at: datetime
    does: DeadlineAction


def combine(own: Mapping[str, int | None], spec: Mapping[str, int | None]) -> Durations:
    """What is in force: the sandbox's own where it has one, else its spec's."""
    return Durations(**{name: (spec[name] if own[name] is None else own[name]) or None for name in FIELDS})


def expiry(created_at: datetime, durations: Durations) -> datetime | None:
    """When the sandbox is deleted, whatever goes on in it; None: never."""
    return _after(created_at, durations.max_age_seconds)


def next_deadline(situation: Situation, durations: Durations) -> Deadline | None:
    """What comes next; None: nothing, as long as nothing else happens."""
    gone = (Status.DELETING, Status.DELETED)
    if situation.desired == Desired.DELETED or situation.status in gone:
        return None
    ends = expiry(situation.created_at, durations)
    found = [_idle(situation, durations), Deadline(ends, DeadlineAction.EXPIRE) if ends else None]
    return min((deadline for deadline in found if deadline), key=lambda deadline: deadline.at, default=None)


def parse_duration(text: str) -> int | None:
    """Seconds of `90`, `90s`, `30m`, `12h` or `7d`; None for `never`.

    Raises:
        Invalid: it is none of these, zero, or more than ten years.
    """
    if text == "never":
        return None
    found = re.fullmatch(r"([0-9]{1,12})([smhd]?)", text)
    seconds = int(found[1]) * UNITS[found[2] or "s"] if found else 0
    if not 1 <= seconds <= MAX_SECONDS:
        raise Invalid(f"a time such as 90s, 30m, 12h or 7d, of ten years at most, or never, is needed, not {text!r}")
    return seconds


def show_duration(seconds: int | None) -> str:
    """The same in words as short as `parse_duration` reads."""
    if seconds is None:
        return "never"
    unit = next(unit for unit in reversed(UNITS) if seconds % UNITS[unit] == 0)
    return f"{seconds // UNITS[unit]}{unit}"


def _idle(situation: Situation, durations: Durations) -> Deadline | None:
    """A wish that is under way is not disturbed: what it leads to has a deadline of its own."""
    if not situation.answered:
        return None
    act, seconds = _next_act(situation, durations)
    at = _after(max(situation.settled_at, situation.last_active_at), seconds)
    return Deadline(at, act) if at else None


def _next_act(situation: Situation, durations: Durations) -> tuple[DeadlineAction, int | None]:
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

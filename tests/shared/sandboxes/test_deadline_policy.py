"""The next deadline of a sandbox over the product of its inputs, and the text form of durations."""

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from shared.cli.local.quantities import parse_duration, show_duration
from shared.errors import Invalid
from shared.models import Sandbox
from shared.sandboxes.deadlines import (
    FIELDS,
    NEVER,
    Deadline,
    Durations,
    combine,
    expiry,
    next_deadline,
)
from shared.states import MAX_DEADLINE_SECONDS, DeadlineAction, Desired, PauseKind, Reason, Status

CREATED = datetime(2026, 1, 1, tzinfo=UTC)
EARLY, LATE = CREATED + timedelta(seconds=100), CREATED + timedelta(seconds=200)
FREEZE, STOP, DELETE = 10, 20, 30
# None, and ages that end before all other deadlines, between two of them, and after all of them.
AGES = (None, 50, 225, 10_000)
ROWS = [
    Sandbox(
        spec_id="",
        session_key="",
        session_key_digest="",
        desired=desired,
        status=status,
        pause_kind=kind,
        generation=2,
        observed_generation=1 + is_observed,
        created_at=CREATED,
        status_changed_at=moved_at,
        last_active_at=active_at,
    )
    for desired, status, kind, is_observed, moved_at, active_at in product(
        Desired, Status, (None, *PauseKind), (True, False), (EARLY, LATE), (EARLY, LATE)
    )
]
DURATIONS = [Durations(*values) for values in product((None, FREEZE), (None, STOP), (None, DELETE), AGES)]


def is_deleted(row: Sandbox) -> bool:
    return row.desired == Desired.DELETED or row.status in (Status.DELETING, Status.DELETED)


def idle_action(row: Sandbox) -> DeadlineAction | None:
    """The expected action on an idle sandbox, from a table that is independent of the code."""
    if is_deleted(row) or row.generation != row.observed_generation:
        return None
    by_status = {
        Status.RUNNING: DeadlineAction.FREEZE,
        Status.ERROR: DeadlineAction.DELETE,
        Status.PAUSED: DeadlineAction.DELETE,
    }
    frozen = row.status == Status.PAUSED and row.pause_kind == PauseKind.FROZEN
    return DeadlineAction.STOP if frozen else by_status.get(Status(row.status))


@pytest.mark.parametrize("durations", DURATIONS)
def test_next_deadline_is_the_earliest_that_applies(durations: Durations) -> None:
    seconds = {DeadlineAction.FREEZE: durations.freeze_after_seconds, DeadlineAction.STOP: durations.stop_after_seconds}
    seconds[DeadlineAction.DELETE] = durations.delete_after_seconds
    for row in ROWS:
        expected: list[Deadline] = []
        if (ends := expiry(CREATED, durations)) is not None and not is_deleted(row):
            expected.append(Deadline(ends, DeadlineAction.EXPIRE))
        action = idle_action(row)
        if action is not None and (after := seconds[action]) is not None:
            expected.append(Deadline(max(row.status_changed_at, row.last_active_at) + timedelta(seconds=after), action))
        assert next_deadline(row, durations) == min(expected, key=lambda deadline: deadline.at, default=None), row


def test_sandbox_has_no_deadline_by_default() -> None:
    assert {next_deadline(row, Durations()) for row in ROWS} == {None}


def test_idle_delete_is_for_stopped_and_failed_sandboxes() -> None:
    durations = Durations(FREEZE, STOP, DELETE)
    deleted = {
        (row.status, row.pause_kind)
        for row in ROWS
        if (found := next_deadline(row, durations)) and found.action.outcome[0] == Desired.DELETED
    }
    assert {status for status, _ in deleted} == {Status.PAUSED, Status.ERROR}
    assert (Status.PAUSED, PauseKind.FROZEN) not in deleted


@pytest.mark.parametrize("action", DeadlineAction)
def test_each_action_has_a_desired_state_and_a_reason_of_its_own(action: DeadlineAction) -> None:
    desired, reason = action.outcome
    assert (desired == Desired.DELETED) == (action in (DeadlineAction.DELETE, DeadlineAction.EXPIRE))
    assert reason in Reason
    assert len({other.outcome[1] for other in DeadlineAction}) == len(DeadlineAction)


@pytest.mark.parametrize(
    ("own", "spec", "expected"), [(None, None, None), (None, 5, 5), (7, 5, 7), (7, None, 7), (NEVER, 5, None)]
)
def test_own_duration_overrides_that_of_the_spec(own: int | None, spec: int | None, expected: int | None) -> None:
    for name in FIELDS:
        others = dict.fromkeys(FIELDS)
        found = combine(others | {name: own}, others | {name: spec})
        assert found == Durations(**{name: expected})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1", 1),
        ("90s", 90),
        ("30m", 1800),
        ("12h", 43_200),
        ("7d", 604_800),
        ("never", None),
        ("3650d", MAX_DEADLINE_SECONDS),
    ],
)
def test_durations_are_parsed(text: str, seconds: int | None) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0d", "-1", "1.5h", "1w", "h", "1 h", "Never", "3651d", "9" * 40, "\u0661h"])
def test_invalid_durations_are_rejected(text: str) -> None:
    with pytest.raises(Invalid, match="90s, 30m, 12h or 7d"):
        parse_duration(text)


@pytest.mark.parametrize("seconds", [None, 1, 59, 60, 90, 3600, 5400, 86_400, 129_600, MAX_DEADLINE_SECONDS])
def test_shown_durations_parse_to_the_same(seconds: int | None) -> None:
    assert parse_duration(show_duration(seconds)) == seconds


def test_durations_are_shown_in_the_largest_unit() -> None:
    assert [show_duration(seconds) for seconds in (90, 1800, 86_400)] == ["90s", "30m", "1d"]

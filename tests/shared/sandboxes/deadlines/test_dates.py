"""Dates of deadlines: derived from the state, the spec and the last activity."""

from datetime import timedelta
from functools import partial

import pytest
import time_machine

from shared.clock import after, now
from shared.db.database import Database
from shared.models import Sandbox
from shared.sandboxes import deadlines, specs
from shared.sandboxes import status as sandbox_status
from shared.sandboxes.deadlines import NEVER
from shared.sandboxes.status import ObservedState
from shared.states import DeadlineAction, Desired, PauseKind, Reason, Status
from tests.factories import SPEC_ID, ApiUser
from tests.interleaving import overlap
from tests.rows import as_stored
from tests.shared.sandboxes.deadlines.sandboxes import (
    LONG_AGO,
    change,
    create,
    deadline,
    make,
    overdue,
    set_desired,
    write,
)


class TestDates:
    def test_new_sandbox_expires_at_its_max_age(self, database: Database, user: ApiUser) -> None:
        own = {"max_age_seconds": 900}
        sandbox = write(database, lambda session: create(session, user, own_deadlines=own))
        found = as_stored(database, sandbox)
        assert found.expires_at == found.created_at + timedelta(seconds=900)
        assert (found.deadline_at, found.deadline_does) == (found.expires_at, DeadlineAction.EXPIRE)

    def test_deadline_follows_the_status(self, database: Database, user: ApiUser) -> None:
        sandbox = make(database, user)
        with time_machine.travel(now(), tick=False) as clock:
            states: list[tuple[ObservedState, DeadlineAction, int]] = [
                (ObservedState(Status.PAUSED, pause_kind=PauseKind.FROZEN), DeadlineAction.STOP, 600),
                (ObservedState(Status.PAUSED, pause_kind=PauseKind.STOPPED), DeadlineAction.DELETE, 6000),
                (ObservedState(Status.RUNNING), DeadlineAction.FREEZE, 60),
                (ObservedState(Status.ERROR, Reason.EXIT_CODE), DeadlineAction.DELETE, 6000),
            ]
            for state, action, seconds in states:
                clock.shift(5)
                write(database, partial(sandbox_status.set_status, sandbox=sandbox, state=state))
                assert deadline(database, sandbox) == (after(seconds), action)
            clock.shift(5)
            before = deadline(database, sandbox)
            write(
                database,
                lambda session: sandbox_status.set_status(
                    session, sandbox, ObservedState(Status.ERROR, detail="still so")
                ),
            )
            assert deadline(database, sandbox) == before

    @pytest.mark.parametrize("later", ["status_changed_at", "last_active_at"])
    def test_time_from_before_the_clock_was_set_back_is_replaced(
        self, database: Database, user: ApiUser, later: str
    ) -> None:
        with time_machine.travel(now(), tick=False):
            sandbox = make(database, user, **{later: after(86400)})
            write(database, lambda session: deadlines.count_from_now(session, sandbox.id))
            found = as_stored(database, sandbox)
            times = sorted([found.status_changed_at, found.last_active_at])
            assert (times, getattr(found, later)) == ([now() - LONG_AGO, now()], now())
            assert found.deadline_at == after(60)

    def test_pending_desired_state_has_no_deadline(self, database: Database, user: ApiUser) -> None:
        sandbox = make(database, user, status=Status.PAUSED)
        write(database, lambda session: set_desired(session, sandbox, Desired.RUNNING, user))
        assert deadline(database, sandbox) == (None, None)
        assert now() - as_stored(database, sandbox).last_active_at < LONG_AGO

    def test_deleted_sandbox_has_no_deadline(self, database: Database, user: ApiUser) -> None:
        sandbox = make(database, user, max_age_seconds=60)
        write(database, lambda session: set_desired(session, sandbox, Desired.DELETED, user))
        assert deadline(database, sandbox) == (None, None)

    def test_own_duration_overrides_that_of_the_spec(self, database: Database, user: ApiUser) -> None:
        sandbox = make(database, user)
        for own, expected in ((7, 7), (NEVER, None), (None, 60)):
            write(database, partial(change, sandbox=sandbox, owner=user, freeze_after_seconds=own))
            found = as_stored(database, sandbox)
            assert found.deadline_at == (found.last_active_at + timedelta(seconds=expected) if expected else None)

    def test_spec_change_applies_to_sandboxes_without_own_durations(self, database: Database, user: ApiUser) -> None:
        inherited, own = make(database, user), make(database, user, freeze_after_seconds=7)
        other = make(database, user, spec_id="another:1")
        before = [deadline(database, row) for row in (own, other)]
        write(database, lambda session: specs.set_deadlines(session, SPEC_ID, {"freeze_after_seconds": 6000}))
        assert deadline(database, inherited)[0] == inherited.last_active_at + timedelta(seconds=6000)
        assert [deadline(database, row) for row in (own, other)] == before

    def test_sandboxes_that_a_spec_change_would_delete_are_counted(self, database: Database, user: ApiUser) -> None:
        make(database, user, created_at=now() - LONG_AGO)
        make(database, user)
        make(database, user, status=Status.DELETED, created_at=now() - LONG_AGO)
        count = write(database, lambda session: specs.set_deadlines(session, SPEC_ID, {"max_age_seconds": 600}))
        assert count == 1

    def test_sandbox_created_during_a_spec_change_gets_the_new_deadlines(
        self, database: Database, user: ApiUser
    ) -> None:
        """In either order, the sandbox has the spec's deadlines in the end."""
        for order in (1, -1):
            acts = [
                lambda session: create(session, user),
                lambda session: specs.set_deadlines(session, SPEC_ID, {"max_age_seconds": 900}),
            ][::order]
            created = next(row for row in overlap(database, *acts) if isinstance(row, Sandbox))
            assert as_stored(database, created).deadline_does == DeadlineAction.EXPIRE
            write(database, lambda session: specs.set_deadlines(session, SPEC_ID, {"max_age_seconds": None}))
            assert as_stored(database, created).deadline_at is None


class TestActivity:
    @pytest.mark.parametrize(
        ("columns", "seconds", "stale"),
        [
            ({"freeze_after_seconds": NEVER}, 9.5, False),
            ({"freeze_after_seconds": NEVER}, 10.5, True),
            ({"freeze_after_seconds": 600}, 9.5, False),
            ({"freeze_after_seconds": 600}, 10.5, True),
            ({"freeze_after_seconds": 20}, 1.5, False),
            ({"freeze_after_seconds": 20}, 2.5, True),
            ({"freeze_after_seconds": 20}, -15, False),
            ({"freeze_after_seconds": 20}, -25, True),
        ],
    )
    def test_recorded_activity_becomes_stale(
        self, database: Database, user: ApiUser, columns: dict[str, int], seconds: float, stale: bool
    ) -> None:
        with time_machine.travel(now(), tick=False):
            active_at = after(-seconds)
            sandbox = make(database, user, status_changed_at=active_at, last_active_at=active_at, **columns)
            assert deadlines.is_activity_stale(sandbox) is stale

    def test_activity_moves_the_deadline(self, database: Database, user: ApiUser) -> None:
        sandbox = make(database, user)
        write(database, lambda session: deadlines.record_activity(session, sandbox.id))
        assert overdue(database) == []
        found = as_stored(database, sandbox)
        assert found.deadline_at == found.last_active_at + timedelta(seconds=60)

    def test_activity_postpones_deadlines_of_one_sandbox_only(self, database: Database, user: ApiUser) -> None:
        active, idle = make(database, user), make(database, user)
        write(database, lambda session: deadlines.record_activity(session, active.id))
        assert [found.sandbox_id for found in overdue(database)] == [idle.id]
        assert as_stored(database, idle) == idle

    def test_activity_of_a_deleted_sandbox_sets_no_deadline(self, database: Database, user: ApiUser) -> None:
        sandbox = make(database, user, status=Status.DELETED)
        write(database, lambda session: deadlines.record_activity(session, sandbox.id))
        assert deadline(database, sandbox) == (None, None)

"""Deadlines and concurrent requests: the first one wins, on both databases."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import product
from typing import Any

import pytest
from sqlmodel import Session

from shared.clock import after, now
from shared.conversations import start as conversation_start
from shared.conversations.start import StartCommand
from shared.db.database import Database
from shared.errors import NotFound
from shared.models import Sandbox
from shared.sandboxes import deadlines
from shared.sandboxes import status as sandbox_status
from shared.sandboxes.deadlines import FIELDS
from shared.sandboxes.status import ObservedState
from shared.states import DeadlineAction, Desired, PauseKind, Status
from tests.factories import VAULT, ApiUser, make_start_task
from tests.interleaving import overlap
from tests.rows import as_stored
from tests.shared.sandboxes.deadlines.sandboxes import LONG_AGO, apply, change, make, overdue, set_desired

Attempt = Callable[[Session, Sandbox, ApiUser], Any]


def resume(session: Session, sandbox: Sandbox, user: ApiUser) -> None:
    set_desired(session, sandbox, Desired.RUNNING, user)


def delete(session: Session, sandbox: Sandbox, user: ApiUser) -> None:
    set_desired(session, sandbox, Desired.DELETED, user)


def record_activity(session: Session, sandbox: Sandbox, _user: ApiUser) -> None:
    deadlines.record_activity(session, sandbox.id)


def converse(session: Session, sandbox: Sandbox, user: ApiUser) -> None:
    conversation_start.create_start_task(session, VAULT, StartCommand(user.id, {"sandbox_id": sandbox.id}, {}, now()))


def extend(session: Session, sandbox: Sandbox, user: ApiUser) -> None:
    change(session, sandbox, user, **dict.fromkeys(FIELDS[:3], 60_000))


def not_found(act: Attempt) -> Attempt:
    """Wrap an action so that it returns whether the sandbox was not found."""

    def attempt(session: Session, sandbox: Sandbox, user: ApiUser) -> bool:
        try:
            with session.begin_nested():
                act(session, sandbox, user)
        except NotFound:
            return True
        return False

    return attempt


SITUATIONS: dict[str, dict[str, Any]] = {
    "running": {"status": Status.RUNNING},
    "paused": {"status": Status.PAUSED},
    "stopped": {"status": Status.PAUSED, "pause_kind": PauseKind.STOPPED, "desired": Desired.STOPPED},
    "failed": {"status": Status.ERROR, "ready_at": after(-9999)},
}


OLD = dict.fromkeys(("status_changed_at", "last_active_at"), after(-9999))


PAIRS = [
    (situation, act)
    for situation, act in product(SITUATIONS, (resume, record_activity, converse, extend, delete))
    if (situation, act) != ("failed", converse)  # the request is rejected
]


APPLIED = {"running": Desired.PAUSED, "paused": Desired.STOPPED, "stopped": Desired.DELETED, "failed": Desired.DELETED}


@pytest.mark.usefixtures("model_key")
class TestOverlap:
    """A deadline and another transaction at the same moment, in both orders."""

    @pytest.mark.parametrize(("situation", "act"), PAIRS)
    def test_request_before_a_deadline_wins(
        self, database: Database, user: ApiUser, situation: str, act: Attempt
    ) -> None:
        sandbox = make(database, user, **OLD, **SITUATIONS[situation])
        [due] = overdue(database)
        _, is_applied = overlap(database, lambda s: act(s, sandbox, user), lambda s: apply(s, due))
        assert is_applied is False
        found = as_stored(database, sandbox)
        resumes = act is resume or (act is converse and situation != "running")
        expected = Desired.RUNNING if resumes else Desired.DELETED if act is delete else Desired(sandbox.desired)
        assert (found.desired, found.desired_reason) == (expected, None)
        assert overdue(database) == []

    @pytest.mark.parametrize(("situation", "act"), PAIRS)
    def test_request_after_a_deadline_starts_a_generation(
        self, database: Database, user: ApiUser, situation: str, act: Attempt
    ) -> None:
        sandbox = make(database, user, **OLD, **SITUATIONS[situation])
        [due] = overdue(database)
        is_applied, is_missing = overlap(database, lambda s: apply(s, due), lambda s: not_found(act)(s, sandbox, user))
        assert is_applied is True
        found, is_deleted = as_stored(database, sandbox), APPLIED[situation] == Desired.DELETED
        assert is_missing is (is_deleted and act is not record_activity)
        if is_deleted or act in (record_activity, extend):
            expected = APPLIED[situation]
        else:
            expected = Desired.DELETED if act is delete else Desired.RUNNING
        assert found.desired == expected
        assert (found.deadline_at is None) or found.deadline_does == DeadlineAction.EXPIRE

    def test_two_sweeps_apply_a_deadline_once(self, database: Database, user: ApiUser) -> None:
        sandbox = make(database, user)
        [due] = overdue(database)
        assert overlap(database, lambda s: apply(s, due), lambda s: apply(s, due)) == (True, False)
        assert as_stored(database, sandbox).generation == sandbox.generation + 1

    def test_two_sweeps_leave_an_active_sandbox_running(self, database: Database, user: ApiUser) -> None:
        sandbox = make(database, user)
        make_start_task(database, user, sandbox)
        [due] = overdue(database)
        assert overlap(database, lambda s: apply(s, due), lambda s: apply(s, due)) == (False, False)
        assert as_stored(database, sandbox).generation == sandbox.generation

    @pytest.mark.parametrize("first", ["status", "activity"])
    def test_status_and_activity_leave_the_later_deadline(self, database: Database, user: ApiUser, first: str) -> None:
        """The worker's copy of the row is stale, and the deadline is not computed from it."""
        sandbox = make(database, user)
        acts: list[Callable[[Session], Any]] = [
            lambda s: sandbox_status.set_status(s, sandbox, ObservedState(Status.RUNNING, detail="checked")),
            lambda s: deadlines.record_activity(s, sandbox.id),
        ]
        overlap(database, *(acts if first == "status" else acts[::-1]))
        found = as_stored(database, sandbox)
        assert found.last_active_at > sandbox.last_active_at
        assert found.deadline_at == found.last_active_at + timedelta(seconds=60)

    def test_longer_max_age_wins_over_an_expiry(self, database: Database, user: ApiUser) -> None:
        sandbox = make(database, user, max_age_seconds=60, created_at=now() - LONG_AGO)
        [due] = overdue(database)
        longer = partial(change, sandbox=sandbox, owner=user, max_age_seconds=60_000)
        assert overlap(database, longer, lambda s: apply(s, due))[1] is False
        assert as_stored(database, sandbox).desired == Desired.RUNNING

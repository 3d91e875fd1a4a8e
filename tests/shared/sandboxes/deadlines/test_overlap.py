"""Deadlines and requests at once: the first one holds, on both databases."""

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
from shared.sandboxes.deadline_policy import FIELDS
from shared.sandboxes.status import ObservedState
from shared.states import DeadlineAction, Desired, PauseKind, Status
from tests.factories import (
    VAULT,
    Person,
    make_start_task,
)
from tests.interleaving import overlap
from tests.rows import as_stored
from tests.shared.sandboxes.deadlines.sandboxes import LONG_AGO, change, make, meet, overdue, wish

Attempt = Callable[[Session, Sandbox, Person], Any]


def resume(session: Session, sandbox: Sandbox, user: Person) -> None:
    wish(session, sandbox, Desired.RUNNING, user)


def delete(session: Session, sandbox: Sandbox, user: Person) -> None:
    wish(session, sandbox, Desired.DELETED, user)


def use(session: Session, sandbox: Sandbox, _user: Person) -> None:
    deadlines.record_use(session, sandbox.id)


def converse(session: Session, sandbox: Sandbox, user: Person) -> None:
    conversation_start.create_start_task(session, VAULT, StartCommand(user.id, {"sandbox_id": sandbox.id}, {}, now()))


def extend(session: Session, sandbox: Sandbox, user: Person) -> None:
    change(session, sandbox, user, **dict.fromkeys(FIELDS[:3], 60_000))


def refused(act: Attempt) -> Attempt:
    """The same; whether it found nothing there any more."""

    def attempt(session: Session, sandbox: Sandbox, user: Person) -> bool:
        try:
            with session.begin_nested():
                act(session, sandbox, user)
        except NotFound:
            return True
        return False

    return attempt


SITUATIONS: dict[str, dict[str, Any]] = {
    "running": {"status": Status.RUNNING},
    "frozen": {"status": Status.PAUSED},
    "stopped": {"status": Status.PAUSED, "pause_kind": PauseKind.STOPPED, "desired": Desired.STOPPED},
    "failed": {"status": Status.ERROR, "ready_at": after(-9999)},
}


OLD = dict.fromkeys(("settled_at", "last_active_at"), after(-9999))


PAIRS = [
    (situation, act)
    for situation, act in product(SITUATIONS, (resume, use, converse, extend, delete))
    if (situation, act) != ("failed", converse)  # that is refused
]


WISHED = {"running": Desired.PAUSED, "frozen": Desired.STOPPED, "stopped": Desired.DELETED, "failed": Desired.DELETED}


@pytest.mark.usefixtures("model_key")
class TestOverlap:
    """A deadline and something else at the same moment, each first once."""

    @pytest.mark.parametrize(("situation", "act"), PAIRS)
    def test_request_before_a_deadline_holds(
        self, database: Database, user: Person, situation: str, act: Attempt
    ) -> None:
        sandbox = make(database, user, **OLD, **SITUATIONS[situation])
        [seen] = overdue(database)
        _, wished = overlap(database, lambda s: act(s, sandbox, user), lambda s: meet(s, seen))
        assert wished is False
        found = as_stored(database, sandbox)
        wakes = act is resume or (act is converse and situation != "running")
        expected = Desired.RUNNING if wakes else Desired.DELETED if act is delete else Desired(sandbox.desired)
        assert (found.desired, found.wish_reason) == (expected, None)
        assert overdue(database) == []

    @pytest.mark.parametrize(("situation", "act"), PAIRS)
    def test_request_after_a_deadline_is_a_new_wish(
        self, database: Database, user: Person, situation: str, act: Attempt
    ) -> None:
        sandbox = make(database, user, **OLD, **SITUATIONS[situation])
        [seen] = overdue(database)
        wished, gone = overlap(database, lambda s: meet(s, seen), lambda s: refused(act)(s, sandbox, user))
        assert wished is True
        found, doomed = as_stored(database, sandbox), WISHED[situation] == Desired.DELETED
        assert gone is (doomed and act is not use)
        if doomed or act in (use, extend):
            expected = WISHED[situation]
        else:
            expected = Desired.DELETED if act is delete else Desired.RUNNING
        assert found.desired == expected
        assert (found.deadline_at is None) or found.deadline_does == DeadlineAction.EXPIRE

    def test_two_sweeps_wish_once(self, database: Database, user: Person) -> None:
        sandbox = make(database, user)
        [seen] = overdue(database)
        assert overlap(database, lambda s: meet(s, seen), lambda s: meet(s, seen)) == (True, False)
        assert as_stored(database, sandbox).generation == sandbox.generation + 1

    def test_two_sweeps_give_more_time_once(self, database: Database, user: Person) -> None:
        sandbox = make(database, user)
        make_start_task(database, user, sandbox)
        [seen] = overdue(database)
        assert overlap(database, lambda s: meet(s, seen), lambda s: meet(s, seen)) == (False, False)
        assert as_stored(database, sandbox).generation == sandbox.generation

    @pytest.mark.parametrize("first", ["settle", "use"])
    def test_a_fact_and_a_use_at_once_leave_the_later_deadline(
        self, database: Database, user: Person, first: str
    ) -> None:
        """A worker's copy of the row is old: the deadline is not made from that."""
        sandbox = make(database, user)
        acts: list[Callable[[Session], Any]] = [
            lambda s: sandbox_status.set_status(s, sandbox, ObservedState(Status.RUNNING, detail="looked at")),
            lambda s: deadlines.record_use(s, sandbox.id),
        ]
        overlap(database, *(acts if first == "settle" else acts[::-1]))
        found = as_stored(database, sandbox)
        assert found.last_active_at > sandbox.last_active_at
        assert found.deadline_at == found.last_active_at + timedelta(seconds=60)

    def test_expiry_and_a_longer_life(self, database: Database, user: Person) -> None:
        sandbox = make(database, user, max_age_seconds=60, created_at=now() - LONG_AGO)
        [seen] = overdue(database)
        longer = partial(change, sandbox=sandbox, owner=user, max_age_seconds=60_000)
        assert overlap(database, longer, lambda s: meet(s, seen))[1] is False
        assert as_stored(database, sandbox).desired == Desired.RUNNING

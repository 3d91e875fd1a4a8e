"""Deadlines in the store: they follow from what they depend on, and what comes first wins."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from itertools import product
from typing import Any

import pytest
import time_machine
from sqlalchemy import text
from sqlmodel import Session

from shared import conversation_starts
from shared.clock import after, now
from shared.conversation_starts import Wish
from shared.database import Database
from shared.deadlines import FIELDS, NEVER, Act
from shared.errors import NotFound
from shared.models import Sandbox, SandboxSpec
from shared.states import Desired, NodeStatus, PauseKind, Reason, Stage, Status
from shared.store import deadlines, sandboxes, specs, wishes
from shared.store.deadlines import Overdue
from shared.store.sandboxes import Fact
from tests.factories import (
    NODE_ID,
    SPEC_ID,
    VAULT,
    Person,
    make_conversation,
    make_node,
    make_sandbox,
    make_spec,
    make_start_task,
)
from tests.interleaving import overlap
from tests.rows import as_stored

CHAIN: dict[str, Any] = {"freeze_after_seconds": 60, "stop_after_seconds": 600, "delete_after_seconds": 6000}
LONG_AGO = timedelta(hours=1)


@pytest.fixture(autouse=True)
def _spec(database: Database) -> None:
    make_spec(database, **CHAIN)


def make(database: Database, owner: Person, **columns: Any) -> Sandbox:
    """A sandbox with its deadlines in place, unused for an hour unless it is said otherwise."""
    defaults = {"settled_at": now() - LONG_AGO, "last_active_at": now() - LONG_AGO}
    sandbox = make_sandbox(database, owner, **(defaults | columns))
    write(database, lambda session: deadlines.refresh(session, sandbox.id))
    return as_stored(database, sandbox)


def write(database: Database, act: Callable[[Session], Any]) -> Any:
    with database.transaction() as session:
        return act(session)


def deadline(database: Database, sandbox: Sandbox) -> tuple[datetime | None, str | None]:
    found = as_stored(database, sandbox)
    return found.deadline_at, found.deadline_does


def overdue(database: Database, node_id: str = NODE_ID) -> list[Overdue]:
    with database.reading() as session:
        return list(deadlines.overdue(session, node_id))


def meet_all(database: Database, node_id: str = NODE_ID) -> list[bool]:
    return [write(database, partial(meet, seen=seen)) for seen in overdue(database, node_id)]


def meet(session: Session, seen: Overdue) -> bool:
    return deadlines.meet(session, seen, due_at=now())


def wish(session: Session, sandbox: Sandbox, desired: Desired, owner: Person) -> None:
    """As the routes do it."""
    row = sandboxes.get(session, sandbox.id, owner.id, lock=True)
    wishes.wish(session, row, desired, due_at=now())


class TestFollowing:
    def test_a_new_sandbox(self, database: Database, user: Person) -> None:
        own = {"max_age_seconds": 900}
        sandbox = write(database, lambda session: create(session, user, own_deadlines=own))
        found = as_stored(database, sandbox)
        assert found.expires_at == found.created_at + timedelta(seconds=900)
        assert (found.deadline_at, found.deadline_does) == (found.expires_at, Act.EXPIRE)

    def test_a_life(self, database: Database, user: Person) -> None:
        sandbox = make(database, user)
        with time_machine.travel(now(), tick=False) as clock:
            steps: list[tuple[Fact, Act, int]] = [
                (Fact(Status.PAUSED, pause_kind=PauseKind.FROZEN), Act.STOP, 600),
                (Fact(Status.PAUSED, pause_kind=PauseKind.STOPPED), Act.DELETE, 6000),
                (Fact(Status.RUNNING), Act.FREEZE, 60),
                (Fact(Status.ERROR, Reason.EXIT_CODE), Act.DELETE, 6000),
            ]
            for fact, act, seconds in steps:
                clock.shift(5)
                write(database, partial(sandboxes.move, sandbox=sandbox, fact=fact))
                assert deadline(database, sandbox) == (after(seconds), act)
            clock.shift(5)
            before = deadline(database, sandbox)
            write(database, lambda session: sandboxes.move(session, sandbox, Fact(Status.ERROR, detail="still so")))
            assert deadline(database, sandbox) == before

    def test_a_wish_under_way_has_none(self, database: Database, user: Person) -> None:
        sandbox = make(database, user, status=Status.PAUSED)
        write(database, lambda session: wish(session, sandbox, Desired.RUNNING, user))
        assert deadline(database, sandbox) == (None, None)
        assert now() - as_stored(database, sandbox).last_active_at < LONG_AGO

    def test_a_deleted_one_has_none(self, database: Database, user: Person) -> None:
        sandbox = make(database, user, max_age_seconds=60)
        write(database, lambda session: wish(session, sandbox, Desired.DELETED, user))
        assert deadline(database, sandbox) == (None, None)

    def test_its_own_and_its_specs(self, database: Database, user: Person) -> None:
        sandbox = make(database, user)
        for own, expected in ((7, 7), (NEVER, None), (None, 60)):
            write(database, partial(change, sandbox=sandbox, owner=user, freeze_after_seconds=own))
            found = as_stored(database, sandbox)
            assert found.deadline_at == (found.last_active_at + timedelta(seconds=expected) if expected else None)

    def test_a_change_of_the_spec_reaches_all_but_those_with_their_own(self, database: Database, user: Person) -> None:
        follows, own = make(database, user), make(database, user, freeze_after_seconds=7)
        other = make(database, user, spec_id="another:1")
        before = [deadline(database, row) for row in (own, other)]
        write(database, lambda session: specs.set_deadlines(session, SPEC_ID, {"freeze_after_seconds": 6000}))
        assert deadline(database, follows)[0] == follows.last_active_at + timedelta(seconds=6000)
        assert [deadline(database, row) for row in (own, other)] == before

    def test_what_a_change_of_the_spec_would_delete_is_counted(self, database: Database, user: Person) -> None:
        make(database, user, created_at=now() - LONG_AGO)
        make(database, user)
        make(database, user, status=Status.DELETED, created_at=now() - LONG_AGO)
        count = write(database, lambda session: specs.set_deadlines(session, SPEC_ID, {"max_age_seconds": 600}))
        assert count == 1

    def test_a_sandbox_made_while_its_spec_changes(self, database: Database, user: Person) -> None:
        """Whichever comes first, the sandbox has what the spec has in the end."""
        for order in (1, -1):
            steps = [
                lambda session: create(session, user),
                lambda session: specs.set_deadlines(session, SPEC_ID, {"max_age_seconds": 900}),
            ][::order]
            made = next(row for row in overlap(database, *steps) if isinstance(row, Sandbox))
            assert as_stored(database, made).deadline_does == Act.EXPIRE
            write(database, lambda session: specs.set_deadlines(session, SPEC_ID, {"max_age_seconds": None}))
            assert as_stored(database, made).deadline_at is None


class TestUse:
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
    def test_is_written_down_now_and_then(
        self, database: Database, user: Person, columns: dict[str, int], seconds: float, stale: bool
    ) -> None:
        with time_machine.travel(now(), tick=False):
            used = after(-seconds)
            sandbox = make(database, user, settled_at=used, last_active_at=used, **columns)
            assert deadlines.is_use_stale(sandbox) is stale

    def test_moves_the_deadline(self, database: Database, user: Person) -> None:
        sandbox = make(database, user)
        write(database, lambda session: deadlines.record_use(session, sandbox.id))
        assert overdue(database) == []
        found = as_stored(database, sandbox)
        assert found.deadline_at == found.last_active_at + timedelta(seconds=60)

    def test_does_not_bring_back_what_is_deleted(self, database: Database, user: Person) -> None:
        sandbox = make(database, user, status=Status.DELETED)
        write(database, lambda session: deadlines.record_use(session, sandbox.id))
        assert deadline(database, sandbox) == (None, None)


class TestOverdue:
    def test_oldest_first_and_no_more_than_asked(self, database: Database, user: Person) -> None:
        found = [
            make(database, user, last_active_at=after(-seconds), settled_at=after(-seconds)).id
            for seconds in (70, 90, 80, 5)
        ]
        assert [seen.sandbox_id for seen in overdue(database)] == [found[1], found[2], found[0]]
        with database.reading() as session:
            assert len(deadlines.overdue(session, NODE_ID, limit=2)) == 2

    @pytest.mark.parametrize(
        ("columns", "here", "elsewhere"),
        [
            ({"status": Status.RUNNING}, True, False),
            ({"status": Status.PAUSED}, True, False),
            ({"status": Status.ERROR, "last_active_at": after(-9999), "settled_at": after(-9999)}, True, True),
            ({"max_age_seconds": 1, "created_at": after(-2)}, True, True),
            ({"max_age_seconds": 1, "created_at": after(-2), "status": Status.STARTING, "node_id": None}, True, True),
        ],
    )
    def test_deletes_are_everybodys(
        self, database: Database, user: Person, columns: dict[str, Any], here: bool, elsewhere: bool
    ) -> None:
        make(database, user, **columns)
        assert [bool(overdue(database, node_id)) for node_id in (NODE_ID, "node-b")] == [here, elsewhere]

    def test_what_is_on_a_lost_node_is_left_alone_but_for_deletes(self, database: Database, user: Person) -> None:
        make_node(database, status=NodeStatus.LOST)
        make(database, user)
        make(database, user, status=Status.PAUSED)
        doomed = make(database, user, max_age_seconds=1, created_at=after(-2))
        assert [seen.sandbox_id for seen in overdue(database)] == [doomed.id]
        assert meet_all(database) == [True]
        assert as_stored(database, doomed).desired == Desired.DELETED

    def test_reads_its_index(self, database: Database) -> None:
        sqlite = database.engine.dialect.name == "sqlite"
        with database.transaction() as session:
            if not sqlite:
                session.execute(text("SET LOCAL enable_seqscan = off"))  # so few rows it would rather read all
            query = "SELECT id FROM sandbox WHERE deadline_at <= '2026-01-01' ORDER BY deadline_at LIMIT 100"
            plan = session.execute(text(f"EXPLAIN {'QUERY PLAN' if sqlite else ''} {query}")).all()
        assert "ix_sandbox_deadline_at" in str(plan)


class TestMeeting:
    @pytest.mark.parametrize(
        ("columns", "desired", "reason"),
        [
            ({"status": Status.RUNNING}, Desired.PAUSED, Reason.IDLE_FROZEN),
            ({"status": Status.PAUSED}, Desired.STOPPED, Reason.IDLE_STOPPED),
            ({"status": Status.PAUSED, "pause_kind": PauseKind.STOPPED}, Desired.DELETED, Reason.IDLE_DELETED),
            ({"status": Status.ERROR}, Desired.DELETED, Reason.IDLE_DELETED),
            ({"status": Status.STARTING, "max_age_seconds": 60}, Desired.DELETED, Reason.EXPIRED),
        ],
    )
    def test_writes_a_wish_with_its_reason(
        self, database: Database, user: Person, columns: dict[str, Any], desired: Desired, reason: Reason
    ) -> None:
        times = dict.fromkeys(("created_at", "settled_at", "last_active_at"), after(-9999))
        sandbox = make(database, user, **times, **columns)
        assert meet_all(database) == [True]
        found = as_stored(database, sandbox)
        assert (found.desired, found.wish_reason, found.generation) == (desired, reason, sandbox.generation + 1)
        assert (found.status, found.due_at is not None) == (sandbox.status, True)
        assert overdue(database) == []

    def test_the_next_wish_has_no_reason(self, database: Database, user: Person) -> None:
        sandbox = make(database, user)
        meet_all(database)
        write(database, lambda session: wish(session, sandbox, Desired.RUNNING, user))
        assert as_stored(database, sandbox).wish_reason is None

    @pytest.mark.parametrize("busy", [True, False])
    def test_what_is_in_use_is_not_frozen(self, database: Database, user: Person, busy: bool) -> None:
        for status in ("running", "idle"):
            sandbox = make(database, user)
            if status == "running" or busy:
                make_conversation(database, user, sandbox, execution_status="running" if busy else "finished")
            stage = Stage.READY if busy else Stage.PREPARING_REPOSITORY
            make_start_task(database, user, sandbox, stage=stage)
            assert meet_all(database) == [False]
            found = as_stored(database, sandbox)
            assert (found.desired, found.generation) == (Desired.RUNNING, sandbox.generation)
            # Looked at again when it could be idle, and not before.
            assert found.deadline_at is not None
            assert now() + timedelta(seconds=50) < found.deadline_at

    def test_what_is_idle_again_is(self, database: Database, user: Person) -> None:
        sandbox = make(database, user)
        make_conversation(database, user, sandbox, execution_status="finished")
        make_conversation(database, user, make_sandbox(database, user), execution_status="running")
        make_start_task(database, user, sandbox, stage=Stage.ERROR)
        assert meet_all(database) == [True]

    def test_expiry_holds_whatever_goes_on(self, database: Database, user: Person) -> None:
        sandbox = make(database, user, max_age_seconds=60, created_at=now() - LONG_AGO)
        make_conversation(database, user, sandbox, execution_status="running")
        make_start_task(database, user, sandbox, stage=Stage.WORKING)
        assert meet_all(database) == [True]
        assert as_stored(database, sandbox).desired == Desired.DELETED

    def test_it_is_gone_for_its_owner(self, database: Database, user: Person) -> None:
        sandbox = make(database, user, max_age_seconds=60, created_at=now() - LONG_AGO)
        meet_all(database)
        with pytest.raises(NotFound):
            write(database, lambda session: wish(session, sandbox, Desired.RUNNING, user))


Attempt = Callable[[Session, Sandbox, Person], Any]


def resume(session: Session, sandbox: Sandbox, user: Person) -> None:
    wish(session, sandbox, Desired.RUNNING, user)


def delete(session: Session, sandbox: Sandbox, user: Person) -> None:
    wish(session, sandbox, Desired.DELETED, user)


def use(session: Session, sandbox: Sandbox, _user: Person) -> None:
    deadlines.record_use(session, sandbox.id)


def converse(session: Session, sandbox: Sandbox, user: Person) -> None:
    conversation_starts.accept(session, VAULT, Wish(user.id, {"sandbox_id": sandbox.id}, {}, now()))


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
    def test_what_comes_before_a_deadline_holds(
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
    def test_what_comes_after_a_deadline_is_a_new_wish(
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
        assert (found.deadline_at is None) or found.deadline_does == Act.EXPIRE

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
            lambda s: sandboxes.move(s, sandbox, Fact(Status.RUNNING, detail="looked at")),
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


def create(session: Session, user: Person, **columns: Any) -> Sandbox:
    spec = session.get_one(SandboxSpec, SPEC_ID)
    return sandboxes.create(session, VAULT, owner_id=user.id, spec=spec, due_at=now(), **columns)


def change(session: Session, sandbox: Sandbox, owner: Person, **own: int | None) -> None:
    """As the route does it."""
    row = sandboxes.get(session, sandbox.id, owner.id, lock=True)
    sandboxes.set_deadlines(session, row, own)

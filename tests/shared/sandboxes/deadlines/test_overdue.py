"""Overdue sandboxes: found by the sweep, and given their next desired state."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from shared.clock import after, now
from shared.db.database import Database
from shared.errors import NotFound
from shared.sandboxes import deadlines
from shared.states import Desired, NodeStatus, PauseKind, Reason, Stage, Status
from tests.factories import (
    NODE_ID,
    Person,
    make_conversation,
    make_node,
    make_sandbox,
    make_start_task,
)
from tests.rows import as_stored
from tests.shared.sandboxes.deadlines.sandboxes import LONG_AGO, make, meet_all, overdue, wish, write


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
    def test_deletes_are_overdue_on_every_node(
        self, database: Database, user: Person, columns: dict[str, Any], here: bool, elsewhere: bool
    ) -> None:
        make(database, user, **columns)
        assert [bool(overdue(database, node_id)) for node_id in (NODE_ID, "node-b")] == [here, elsewhere]

    def test_sandbox_on_a_lost_node_is_overdue_for_deletes_only(self, database: Database, user: Person) -> None:
        make_node(database, status=NodeStatus.LOST)
        make(database, user)
        make(database, user, status=Status.PAUSED)
        doomed = make(database, user, max_age_seconds=1, created_at=after(-2))
        assert [seen.sandbox_id for seen in overdue(database)] == [doomed.id]
        assert meet_all(database) == [True]
        assert as_stored(database, doomed).desired == Desired.DELETED

    def test_overdue_reads_its_index(self, database: Database) -> None:
        sqlite = database.engine.dialect.name == "sqlite"
        with database.transaction() as session:
            if not sqlite:
                session.execute(text("SET LOCAL enable_seqscan = off"))  # so few rows it would rather read all
            query = "SELECT id FROM sandbox WHERE deadline_at <= '2026-01-01' ORDER BY deadline_at LIMIT 100"
            plan = session.execute(text(f"EXPLAIN {'QUERY PLAN' if sqlite else ''} {query}")).all()
        assert "ix_sandbox_deadline_at" in str(plan)


class TestActingOnDeadlines:
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
    def test_sandbox_in_use_is_not_frozen(self, database: Database, user: Person, busy: bool) -> None:
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

    def test_sandbox_that_is_idle_again_is_frozen(self, database: Database, user: Person) -> None:
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

    def test_expired_sandbox_is_gone_for_its_owner(self, database: Database, user: Person) -> None:
        sandbox = make(database, user, max_age_seconds=60, created_at=now() - LONG_AGO)
        meet_all(database)
        with pytest.raises(NotFound):
            write(database, lambda session: wish(session, sandbox, Desired.RUNNING, user))

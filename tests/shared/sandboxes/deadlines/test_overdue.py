"""Overdue deadlines: read by the sweep, and applied as the next desired state."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from shared.changes import change_feed
from shared.clock import after, now
from shared.db.database import Database
from shared.errors import NotFound
from shared.sandboxes import due_deadlines
from shared.states import Desired, NodeStatus, PauseKind, Reason, Stage, Status
from tests.factories import (
    NODE_ID,
    ApiUser,
    make_conversation,
    make_node,
    make_sandbox,
    make_start_task,
)
from tests.rows import as_stored
from tests.shared.sandboxes.deadlines.sandboxes import LONG_AGO, apply_all, make, overdue, set_desired, write


class TestOverdue:
    def test_overdue_sandboxes_are_oldest_first_within_the_limit(self, database: Database, user: ApiUser) -> None:
        ids = [
            make(database, user, last_active_at=after(-seconds), status_changed_at=after(-seconds)).id
            for seconds in (70, 90, 80, 5)
        ]
        assert [found.sandbox_id for found in overdue(database)] == [ids[1], ids[2], ids[0]]
        with database.reading() as session:
            assert len(due_deadlines.overdue(session, NODE_ID, limit=2)) == 2

    @pytest.mark.parametrize(
        ("columns", "on_own_node", "elsewhere"),
        [
            ({"status": Status.RUNNING}, True, False),
            ({"status": Status.PAUSED}, True, False),
            ({"status": Status.ERROR, "last_active_at": after(-9999), "status_changed_at": after(-9999)}, True, True),
            ({"max_age_seconds": 1, "created_at": after(-2)}, True, True),
            ({"max_age_seconds": 1, "created_at": after(-2), "status": Status.STARTING, "node_id": None}, True, True),
        ],
    )
    def test_deletes_are_overdue_on_every_node(
        self, database: Database, user: ApiUser, columns: dict[str, Any], on_own_node: bool, elsewhere: bool
    ) -> None:
        make(database, user, **columns)
        assert [bool(overdue(database, node_id)) for node_id in (NODE_ID, "node-b")] == [on_own_node, elsewhere]

    def test_sandbox_on_a_lost_node_is_overdue_for_deletes_only(self, database: Database, user: ApiUser) -> None:
        make_node(database, status=NodeStatus.LOST)
        make(database, user)
        make(database, user, status=Status.PAUSED)
        expired = make(database, user, max_age_seconds=1, created_at=after(-2))
        assert [found.sandbox_id for found in overdue(database)] == [expired.id]
        assert apply_all(database) == [True]
        assert as_stored(database, expired).desired == Desired.DELETED

    def test_lost_node_does_not_delay_deadlines_of_other_nodes(self, database: Database, user: ApiUser) -> None:
        make_node(database, "node-b", status=NodeStatus.LOST)
        sandbox = make(database, user)
        assert [found.sandbox_id for found in overdue(database)] == [sandbox.id]

    def test_overdue_query_reads_its_index(self, database: Database) -> None:
        sqlite = database.engine.dialect.name == "sqlite"
        with database.transaction() as session:
            if not sqlite:
                session.execute(text("SET LOCAL enable_seqscan = off"))  # with few rows it would scan the table
            query = "SELECT id FROM sandbox WHERE deadline_at <= '2026-01-01' ORDER BY deadline_at LIMIT 100"
            plan = session.execute(text(f"EXPLAIN {'QUERY PLAN' if sqlite else ''} {query}")).all()
        assert "ix_sandbox_deadline_at" in str(plan)


class TestApply:
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
    def test_deadline_writes_a_desired_state_with_its_reason(
        self, database: Database, user: ApiUser, columns: dict[str, Any], desired: Desired, reason: Reason
    ) -> None:
        times = dict.fromkeys(("created_at", "status_changed_at", "last_active_at"), after(-9999))
        sandbox = make(database, user, **times, **columns)
        assert apply_all(database) == [True]
        found = as_stored(database, sandbox)
        assert (found.desired, found.desired_reason, found.generation) == (desired, reason, sandbox.generation + 1)
        assert (found.status, found.due_at is not None) == (sandbox.status, True)
        assert overdue(database) == []

    def test_next_desired_state_clears_the_reason(self, database: Database, user: ApiUser) -> None:
        sandbox = make(database, user)
        apply_all(database)
        write(database, lambda session: set_desired(session, sandbox, Desired.RUNNING, user))
        assert as_stored(database, sandbox).desired_reason is None

    @pytest.mark.parametrize("busy", [True, False])
    def test_active_sandbox_is_not_paused(self, database: Database, user: ApiUser, busy: bool) -> None:
        for status in ("running", "idle"):
            sandbox = make(database, user)
            if status == "running" or busy:
                make_conversation(database, user, sandbox, execution_status="running" if busy else "finished")
            stage = Stage.READY if busy else Stage.PREPARING_REPOSITORY
            make_start_task(database, user, sandbox, stage=stage)
            assert apply_all(database) == [False]
            found = as_stored(database, sandbox)
            assert (found.desired, found.generation) == (Desired.RUNNING, sandbox.generation)
            # The deadline is overdue again when the sandbox could be idle, and not before.
            assert found.deadline_at is not None
            assert now() + timedelta(seconds=50) < found.deadline_at

    def test_idle_sandbox_is_paused(self, database: Database, user: ApiUser) -> None:
        sandbox = make(database, user)
        make_conversation(database, user, sandbox, execution_status="finished")
        busy = make_sandbox(database, user)
        make_conversation(database, user, busy, execution_status="running")
        make_start_task(database, user, busy, stage=Stage.WORKING)
        make_start_task(database, user, sandbox, stage=Stage.ERROR)
        assert apply_all(database) == [True]

    def test_idle_sandbox_that_expires_later_is_only_paused(self, database: Database, user: ApiUser) -> None:
        sandbox = make(database, user, max_age_seconds=9999)
        assert apply_all(database) == [True]
        assert as_stored(database, sandbox).desired == Desired.PAUSED

    def test_owner_s_change_feed_has_the_desired_state(self, database: Database, user: ApiUser) -> None:
        sandbox = make(database, user, max_age_seconds=60, created_at=now() - LONG_AGO)
        apply_all(database)
        with database.reading() as session:
            entries = change_feed.read(session, user.id, 0)
        assert entries is not None
        assert [(entry.row_id, entry.status) for entry in entries] == [(sandbox.id, Status.DELETING)]

    def test_active_sandbox_expires(self, database: Database, user: ApiUser) -> None:
        sandbox = make(database, user, max_age_seconds=60, created_at=now() - LONG_AGO)
        make_conversation(database, user, sandbox, execution_status="running")
        make_start_task(database, user, sandbox, stage=Stage.WORKING)
        assert apply_all(database) == [True]
        assert as_stored(database, sandbox).desired == Desired.DELETED

    def test_expired_sandbox_is_not_found_by_its_owner(self, database: Database, user: ApiUser) -> None:
        sandbox = make(database, user, max_age_seconds=60, created_at=now() - LONG_AGO)
        apply_all(database)
        with pytest.raises(NotFound):
            write(database, lambda session: set_desired(session, sandbox, Desired.RUNNING, user))

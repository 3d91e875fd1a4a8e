"""A sweep's cost depends on the due rows, not on all rows: it reads by index, and writes only if a row is due."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlmodel import SQLModel

from shared.clock import after, now
from shared.db.database import Database
from shared.ids import new_id
from shared.models import ChangeEntry, Conversation, IdempotencyKey, Node, Sandbox, StartTask
from shared.retention import tombstones
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes.failover import LostNode
from shared.sql.due_checks import find_due
from shared.sql.statements import Rows, prepare
from shared.states import Stage, Status
from tests.copied_rows import copy_rows, numbers, random_text
from tests.factories import NODE_ID, ApiUser, make_conversation, make_node, make_sandbox, make_start_task
from tests.shared.db.plans import plans_of_sessions
from tests.worker.scenarios import row
from worker.context import WorkerContext
from worker.loops.failover import fail_over
from worker.loops.sweep import STEPS, sweep

# Plans depend on the contents of a table's files, not only on its rows.
pytestmark = pytest.mark.own_database

OLD = 3000
# All tables that grow with age or use; `node` has one row per engine.
TABLES = ("sandbox", "start_task", "conversation", "change_entry", "idempotency_key")
# The indexes whose first or last entries show what is due.
INDEXES = (
    *(f"ix_{table}_{column}" for table in TABLES[:3] for column in ("due_at", "lease_until")),
    "ix_sandbox_there",
    "ix_sandbox_deadline_at",
    "ix_idempotency_key_expires_at",
    "ix_change_entry_at",
    "ix_start_task_failed_at",
    "ix_sandbox_tombstone",
)
# PostgreSQL analyzes tables by itself, SQLite does not.
stores = pytest.mark.parametrize(
    ("database_url", "is_analyzed"),
    [("sqlite", False), ("sqlite", True), ("postgresql", True)],
    indirect=["database_url"],
)


@pytest.fixture
def aged_context(context: WorkerContext, user: ApiUser) -> WorkerContext:
    """A store with thousands of deleted sandboxes and their conversations."""
    gone = make_sandbox(context.database, user, status=Status.DELETED)
    make_start_task(context.database, user, gone, stage=Stage.READY)
    make_conversation(context.database, user, gone)
    with context.database.transaction() as session:
        session.add(ChangeEntry(number=0, owner_id=new_id(), kind="sandbox", row_id=gone.id))
        session.add(_stored_response(user))
        session.flush()
        rows, other = numbers(OLD), random_text(session)
        copy_rows(session, Sandbox, rows, id=other, session_key_digest=other)
        copy_rows(session, StartTask, rows, id=other, conversation_id=other)
        copy_rows(session, Conversation, rows, id=other, title=other)
        copy_rows(session, ChangeEntry, rows, number=rows.c.number)
        copy_rows(session, IdempotencyKey, rows, id=other, key=other)
    return context


def _stored_response(user: ApiUser) -> IdempotencyKey:
    """Return a response that is stored for a day."""
    response: dict[str, Any] = {
        "operation": "POST /",
        "fingerprint": "",
        "status": 200,
        "answer": {},
        "expires_at": after(86_400),
    }
    return IdempotencyKey(owner_id=user.id, key="", **response)


@pytest.fixture
def analyzed_context(aged_context: WorkerContext, is_analyzed: bool) -> WorkerContext:
    """The same store, with or without statistics for the planner."""
    if is_analyzed:
        with aged_context.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ANALYZE")
    return aged_context


def scans_table(plan: str) -> bool:
    """Whether the plan reads every row of a table, or an index of all rows."""
    full = rf"(Seq Scan on|SCAN) ({'|'.join(TABLES)})(_\d)?\b(?! USING (COVERING )?INDEX ix_)"
    return bool(re.search(full, plan))


@stores
def test_sweep_with_nothing_due_scans_no_table(analyzed_context: WorkerContext) -> None:
    with plans_of_sessions(analyzed_context.database) as plans:
        sweep(analyzed_context)
    [plan] = plans
    assert not scans_table(plan)
    assert [index for index in INDEXES if index not in plan] == []


def test_checks_have_no_parameters() -> None:
    """PostgreSQL caches a plan for all values of a parameter, which may read a whole table."""
    sent: list[Any] = []

    def fetch(statement: Any, values: Mapping[str, Any]) -> Rows:
        sent.append(prepare(statement, "postgresql").write(values))
        return [[None] * len(statement.exported_columns)]

    assert find_due(fetch, STEPS) == []
    assert sent == [{}]


@stores
def test_sweep_that_deletes_tombstones_scans_no_table(analyzed_context: WorkerContext, user: ApiUser) -> None:
    long_ago = now() - tombstones.RETENTION
    gone = make_sandbox(analyzed_context.database, user, status=Status.DELETED, updated_at=long_ago)
    make_conversation(analyzed_context.database, user, gone, listed=False, deleted_at=long_ago)
    with plans_of_sessions(analyzed_context.database) as plans:
        sweep(analyzed_context)
    with analyzed_context.database.reading() as session:
        assert session.get(Sandbox, gone.id) is None
    assert [plan for plan in plans if scans_table(plan)] == []


@stores
def test_limit_of_deleted_conversations_scans_no_table(
    analyzed_context: WorkerContext, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tombstones, "MAX_KEPT", 1)
    sandbox = make_sandbox(analyzed_context.database, user)
    for _ in range(2):
        make_conversation(
            analyzed_context.database, user, sandbox, listed=False, deleted_at=now() - tombstones.RETENTION
        )
    with plans_of_sessions(analyzed_context.database) as plans, analyzed_context.database.transaction() as session:
        tombstones.limit_conversations(session, sandbox.id)
    assert len(plans) == 2
    assert [plan for plan in plans if scans_table(plan)] == []


@stores
def test_sweep_that_enqueues_scans_no_table(analyzed_context: WorkerContext, user: ApiUser) -> None:
    sandbox = make_sandbox(analyzed_context.database, user, due_at=now())
    make_start_task(analyzed_context.database, user, sandbox)
    make_conversation(analyzed_context.database, user, sandbox, due_at=now())
    with plans_of_sessions(analyzed_context.database) as plans:
        sweep(analyzed_context)
    assert [plan for plan in plans if scans_table(plan)] == []


@stores
def test_failover_of_a_lost_node_scans_no_table(
    analyzed_context: WorkerContext, other_worker: WorkerContext, user: ApiUser
) -> None:
    make_node(analyzed_context.database, "node-b")
    make_conversation(analyzed_context.database, user, make_sandbox(analyzed_context.database, user), due_at=now())
    with plans_of_sessions(other_worker.database) as plans:
        fail_over(other_worker, LostNode(NODE_ID, row(other_worker, Node, NODE_ID).heartbeat_at))
    assert [plan for plan in plans if scans_table(plan)] == []


@stores
def test_health_monitor_scans_no_table(analyzed_context: WorkerContext) -> None:
    with plans_of_sessions(analyzed_context.database) as plans, analyzed_context.database.reading() as session:
        sandbox_queries.list_running(session, NODE_ID, "a")
    assert plans
    assert [plan for plan in plans if scans_table(plan)] == []


def test_sweep_with_nothing_due_waits_for_no_writer(context: WorkerContext, user: ApiUser) -> None:
    make_sandbox(context.database, user)
    with writer(context.database):
        sweeping = Thread(target=sweep, args=(context,), daemon=True)
        sweeping.start()
        sweeping.join(4)  # less than the lock timeouts of SQLite and PostgreSQL
        assert not sweeping.is_alive()


@contextmanager
def writer(database: Database) -> Iterator[None]:
    """Block all other writers for the length of the block."""
    engine = create_engine(database.engine.url)
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            names = ", ".join(f'"{table.name}"' for table in SQLModel.metadata.sorted_tables)
            connection.execute(text(f"LOCK TABLE {names} IN EXCLUSIVE MODE"))
        yield
        connection.rollback()
    engine.dispose()

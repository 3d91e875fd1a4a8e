"""Queries of the warm pool and of a node read indexes that hold no deleted sandboxes."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import literal
from sqlmodel import Session

from shared.clock import after
from shared.db.database import Database
from shared.models import Sandbox, SandboxSpec
from shared.nodes import placement
from shared.sandboxes import queries as sandbox_queries
from shared.states import Desired, Status
from shared.warm_pool import pool as warm_pool
from shared.warm_pool import start as sandbox_start
from tests.copied_rows import copy_rows, numbers, random_text
from tests.factories import NODE_ID, VAULT, ApiUser
from tests.shared.db.plans import plans_of_sessions

# Plans depend on what a table's files hold, not on its rows alone.
pytestmark = pytest.mark.own_database

DELETED = 3000
# Partial indexes of the sandboxes that are not deleted.
INDEXES = ("ix_sandbox_member", "ix_sandbox_there", "ix_sandbox_listed", "ix_sandbox_counts")
QUERIES: dict[str, Callable[[Session, SandboxSpec], Any]] = {
    "pools to reconcile": lambda session, _: warm_pool.pools_to_reconcile(session),
    "count": lambda session, _: warm_pool.count(session),
    "on a node": lambda session, _: warm_pool.on_node(session, NODE_ID),
    "all on a node": lambda session, _: sandbox_queries.on_node(session, NODE_ID),
    "waiting for a node": lambda session, _: placement.find_waiting(session, NODE_ID),
    "placement": lambda session, spec: placement.place(session, spec.id),
    "remove": lambda session, spec: warm_pool.remove_unusable(session, spec.id, due_at=after(5)),
    "fill": lambda session, spec: warm_pool.start_warm_sandbox(session, VAULT, spec.id, boots=1, due_at=after(5)),
}


@pytest.fixture
def history(database: Database, add: Callable[..., str]) -> Database:
    """A pool with one warm sandbox, and thousands of deleted ones."""
    add()
    deleted = {"desired": literal(Desired.DELETED), "status": literal(Status.DELETED)}
    with database.transaction() as session:
        other = random_text(session)
        copy_rows(session, Sandbox, numbers(DELETED), id=other, session_key_digest=other, **deleted)
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("ANALYZE")
    return database


def test_pool_queries_read_warm_sandboxes_only(history: Database, pooled: SandboxSpec) -> None:
    for name, query in QUERIES.items():  # in one test: filling the store takes longer than all queries
        with plans_of_sessions(history) as plans, history.transaction() as session:
            query(session, pooled)
        assert any(index in plan for plan in plans for index in INDEXES), (name, plans)
        assert not any(scans_sandboxes(plan) for plan in plans), name


def test_claim_reads_warm_sandboxes_only(history: Database, owner: ApiUser, pooled: SandboxSpec) -> None:
    with plans_of_sessions(history) as plans:
        found = sandbox_start.start_in_one_statement(
            history, VAULT, owner_id=owner.id, spec_id=pooled.id, due_at=after(5), own_deadlines={}
        )
    if history.engine.dialect.name == "postgresql":
        assert found is not None
        assert any("ix_sandbox_member" in plan for plan in plans)
    assert not any(scans_sandboxes(plan) for plan in plans)


def scans_sandboxes(plan: str) -> bool:
    """Whether a plan reads every row of the table."""
    return bool(re.search(r"(Seq Scan on|SCAN) sandbox(_\d)?(?! USING)\b", plan))

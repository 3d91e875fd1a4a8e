"""Databases with thousands of conversations of many users, which explain their queries."""

import re
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

from sqlalchemy import insert
from sqlmodel import col, select

from shared.db.database import Database
from shared.models import Conversation, Event, Sandbox, SandboxTransition, StartTask
from shared.sql.statements import prepare
from shared.states import Stage, Status
from tests.bench.seeding import NEWEST, Seeded, seed
from tests.factories import VAULT
from tests.services.stores import Stores

# Enough rows for the planners to have a choice.
SIZE = 5_000


class Explained(Database):
    """A database that also explains its queries."""

    seeded: Seeded

    def __init__(self, url: str) -> None:
        super().__init__(url, idle_seconds=120)  # thousands of rows are inserted in one transaction
        self.plan = ""

    def fetch(self, statement: Any, values: Mapping[str, Any], *, custom_plan: bool = False) -> Any:
        prepared = prepare(statement, self.engine.dialect.name)
        explain = "EXPLAIN" if self.is_postgresql else "EXPLAIN QUERY PLAN"
        connection = self._readers.raw_connection()
        cursor = connection.cursor()
        cursor.execute(f"{explain} {prepared.text}", prepared.write(values))
        self.plan = "\n".join(str(row[-1]) for row in cursor.fetchall())
        connection.close()
        return super().fetch(statement, values, custom_plan=custom_plan)

    @property
    def is_postgresql(self) -> bool:
        return self.engine.dialect.name == "postgresql"

    def looks_through(self, table: str) -> bool:
        """Whether a plan reads every row."""
        return bool(re.search(rf"(Seq Scan on|SCAN) {table}(_1)?\b", self.plan))

    def sorts(self) -> bool:
        return "Sort" in self.plan or "TEMP B-TREE" in self.plan


class ExplainedStores:
    """The filled databases of this module, cached because pytest would fill them again when parameters change."""

    def __init__(self, closing: ExitStack) -> None:
        self._closing = closing
        self._found: dict[str, Explained] = {}

    def of(self, kind: str, stores: Stores) -> Explained:
        """The database of a kind, filled on first use."""
        if kind not in self._found:
            database = Explained(self._closing.enter_context(stores.fresh()))
            self._closing.callback(database.close)
            database.seeded = seed(database, VAULT, SIZE)
            add_starts_and_events(database)
            self._found[kind] = database
        return self._found[kind]


def add_starts_and_events(database: Database) -> None:
    """A start task for each conversation, events of some, and a history of each sandbox."""
    with database.transaction() as session:
        rows = session.exec(select(Conversation).order_by(col(Conversation.id))).all()
        starts: dict[str, Any] = {"stage": Stage.READY, "request": {}}
        session.execute(
            insert(StartTask),
            [
                StartTask(
                    owner_id=row.owner_id,
                    conversation_id=row.id,
                    created_at=row.created_at,
                    updated_at=row.updated_at,
                    **starts,
                ).model_dump()
                for row in rows
            ],
        )
        moves = [
            {"sandbox_id": sandbox_id, "to_status": Status.RUNNING, "at": NEWEST}
            for sandbox_id in session.exec(select(Sandbox.id)).all()
            for _ in range(3)
        ]
        session.execute(insert(SandboxTransition), moves)
        session.execute(
            insert(Event),
            [
                Event(
                    conversation_id=row.id,
                    id=f"{number}",
                    kind="k",
                    timestamp=NEWEST + timedelta(seconds=number),
                    body={},
                ).model_dump(exclude={"seq"})
                for row in {row.owner_id: row for row in rows}.values()
                for number in range(100)
            ],
        )
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("ANALYZE")

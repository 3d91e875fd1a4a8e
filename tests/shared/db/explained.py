"""Databases with thousands of conversations of many users, which explain their queries."""

import re
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import sqlalchemy
from sqlalchemy import func, or_
from sqlmodel import SQLModel, col, select

from shared.db.database import Database, Session
from shared.models import Conversation, Event, Sandbox, SandboxTransition, StartTask
from shared.sql.statements import prepare
from shared.states import Stage, Status
from tests.bench.seeding import NEWEST, Seeded, seed
from tests.copied_rows import copy_rows, numbers, random_text
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
        for add in (_add_starts, _add_histories, _add_events):
            add(session)
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("ANALYZE")


def _add_starts(session: Session) -> None:
    first = session.exec(select(Conversation).limit(1)).one()
    times: dict[str, Any] = {"created_at": first.created_at, "updated_at": first.updated_at}
    _add(session, StartTask(owner_id=first.owner_id, conversation_id=first.id, stage=Stage.READY, request={}, **times))
    columns = (col(getattr(Conversation, name)) for name in ("id", "owner_id", *times))
    others = sqlalchemy.select(*columns).where(col(Conversation.id) != first.id).subquery()
    own = {name: others.c[name] for name in ("owner_id", *times)}
    copy_rows(session, StartTask, others, id=random_text(session), conversation_id=others.c.id, **own)


def _add_histories(session: Session) -> None:
    first, number = session.exec(select(Sandbox.id).limit(1)).one(), numbers(3)
    _add(session, SandboxTransition(sandbox_id=first, to_status=Status.RUNNING, at=NEWEST))
    is_new = or_(col(Sandbox.id) != first, number.c.number > 1)
    others = sqlalchemy.select(col(Sandbox.id)).join(number, is_new).subquery()
    copy_rows(session, SandboxTransition, others, sandbox_id=others.c.id)


def _add_events(session: Session) -> None:
    """A hundred events of one conversation of each user."""
    of_users = sqlalchemy.select(func.max(col(Conversation.id)).label("id")).group_by(col(Conversation.owner_id))
    first: str = session.execute(of_users).scalars().all()[0]
    times = [NEWEST + timedelta(seconds=number) for number in range(100)]
    events = (Event(conversation_id=first, id=f"{at:%M%S}", kind="k", timestamp=at, body={}) for at in times)
    _add(session, *events)
    others = of_users.having(func.max(col(Conversation.id)) != first).subquery()
    copy_rows(session, Event, others, conversation_id=others.c.id)


def _add(session: Session, *rows: SQLModel) -> None:
    session.add_all(rows)
    session.flush()

"""Query plans of lists: they use an index, start at the page's first row, and read only the owner's rows."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import col, select

from shared.conversations import events, start_tasks
from shared.conversations import lists as conversation_lists
from shared.conversations.events import EventFilter
from shared.conversations.lists import SORT_ORDERS, ConversationFilter
from shared.db.database import Database
from shared.models import Conversation, Event, StartTask
from shared.sandboxes import lists as sandbox_lists
from shared.sql.pagination import Order, encode_page_id
from shared.sql.statements import prepare
from shared.states import Stage
from tests.bench.seeding import NEWEST, Seeded, seed
from tests.factories import VAULT
from tests.services.stores import Stores
from tests.shared.db.plans import plans_of_sessions

# Enough rows for the planners to have a choice.
SIZE = 5_000
EVERYTHING = ConversationFilter()
SPRING = datetime(2026, 4, 1, tzinfo=UTC)
STORES = {"sqlite": "sqlite_stores", "postgresql": "postgres_stores"}
ORDERS = sorted(SORT_ORDERS)


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
        """At every row of it."""
        return bool(re.search(rf"(Seq Scan on|SCAN) {table}(_1)?\b", self.plan))

    def sorts(self) -> bool:
        return "Sort" in self.plan or "TEMP B-TREE" in self.plan


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Explained]:
    """Thousands of conversations of many users."""
    stores: Stores = request.getfixturevalue(STORES[request.param])
    directory: Path = tmp_path_factory.mktemp("plans")
    with stores.fresh(directory) as url:
        database = Explained(url)
        database.seeded = seed(database, VAULT, SIZE)
        add_starts_and_events(database)
        yield database
        database.close()


def add_starts_and_events(database: Database) -> None:
    """A start task for each conversation, and events of some."""
    with database.transaction() as session:
        rows = session.exec(select(Conversation).order_by(col(Conversation.id))).all()
        session.add_all(
            StartTask(
                owner_id=row.owner_id,
                conversation_id=row.id,
                stage=Stage.READY,
                request={},
                created_at=row.created_at,
                updated_at=row.updated_at,
            )
            for row in rows
        )
        session.add_all(
            Event(
                conversation_id=row.id, id=f"{number}", kind="k", timestamp=NEWEST + timedelta(seconds=number), body={}
            )
            for row in {row.owner_id: row for row in rows}.values()
            for number in range(100)
        )
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("ANALYZE")


@pytest.fixture(params=["average", "heavy"])
def owner_id(store: Explained, request: pytest.FixtureRequest) -> str:
    """A user with about a hundred conversations, and a user with more."""
    return (store.seeded.heavy if request.param == "heavy" else store.seeded.average[3]).id


def search(store: Explained, owner_id: str, which: ConversationFilter, order: str, page_id: str | None = None) -> int:
    found = conversation_lists.search(store, owner_id, which, sort_order=order, page_id=page_id, limit=20)
    return len(found.items)


def second_page(name: str) -> str:
    """A page with most of the rows after it."""
    order = SORT_ORDERS[name]
    if name.startswith("TITLE"):
        return encode_page_id(order, "S" if order.descending else "B", "8" * 32)
    return encode_page_id(order, NEWEST.replace(month=10 if order.descending else 1), "8" * 32)


@pytest.mark.parametrize("with_subs", [False, True], ids=["parents", "all"])
@pytest.mark.parametrize("order", ORDERS)
def test_each_order_has_an_index(store: Explained, owner_id: str, order: str, with_subs: bool) -> None:
    which = ConversationFilter(with_sub_conversations=with_subs)
    for page_id in (None, second_page(order)):
        assert search(store, owner_id, which, order, page_id) == 20
        assert not any(map(store.looks_through, ("conversation", "sandbox"))), store.plan
        assert not store.sorts(), store.plan


@pytest.mark.parametrize("order", ORDERS)
def test_later_page_reads_from_its_first_row(store: Explained, owner_id: str, order: str) -> None:
    search(store, owner_id, EVERYTHING, order, second_page(order))
    column = SORT_ORDERS[order].column.key
    sign = "<" if SORT_ORDERS[order].descending else ">"
    found = rf"Index Cond: .*ROW\(\(?{column}" if store.is_postgresql else rf"owner_id=\? AND \({column}.*\){sign}"
    assert re.search(found, store.plan), store.plan


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "which",
    [
        ConversationFilter(title_contains="PARSER of"),
        ConversationFilter(title_contains="flamingo"),
        ConversationFilter(title_contains="of"),
        ConversationFilter(created_from=SPRING, created_before=SPRING.replace(month=6)),
        ConversationFilter(updated_from=SPRING, updated_before=SPRING.replace(month=6)),
        ConversationFilter(sandbox_id="{sandbox}"),
        ConversationFilter(repository="acme/app"),
        ConversationFilter(trigger="gui"),
    ],
    ids=["title", "rare title", "short title", "created", "updated", "sandbox", "repository", "trigger"],
)
def test_filters_read_the_owner_s_rows_only(
    store: Explained, owner_id: str, which: ConversationFilter, order: str
) -> None:
    if which.sandbox_id is not None:
        which = ConversationFilter(sandbox_id=store.seeded.sandboxes[owner_id][0])
    search(store, owner_id, which, order)
    assert not store.looks_through("conversation"), store.plan
    conversation_lists.count(store, owner_id, which)
    assert not store.looks_through("conversation"), store.plan


@pytest.mark.parametrize("store", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("which", "has_custom_plan"),
    [
        (EVERYTHING, False),
        (ConversationFilter(sandbox_id="8" * 32), False),
        (ConversationFilter(title_contains="PARSER"), True),
        (ConversationFilter(created_from=SPRING), True),
        (ConversationFilter(created_before=SPRING), True),
        (ConversationFilter(updated_from=SPRING), True),
        (ConversationFilter(updated_before=SPRING), True),
    ],
)
def test_plan_depends_on_the_values_of_a_filter(
    store: Explained, owner_id: str, which: ConversationFilter, has_custom_plan: bool
) -> None:
    # A cached plan is generic: in a prepared statement, from the sixth execution on.
    before = kept_plans(store)
    for _ in range(10):
        search(store, owner_id, which, "CREATED_AT_DESC")
        conversation_lists.count(store, owner_id, which)
    assert has_custom_plan == (kept_plans(store) == before)


def kept_plans(store: Explained) -> int:
    """The number of statements that PostgreSQL has prepared on the first connection."""
    connection = store._readers.raw_connection()
    cursor: Any = connection.cursor()
    kept = "SELECT sum(generic_plans + custom_plans) FROM pg_prepared_statements WHERE statement NOT LIKE 'EXPLAIN%'"
    cursor.execute(kept, prepare=False)
    [[number]] = cursor.fetchall()
    connection.close()
    return int(number or 0)


def test_count_reads_the_index_only(store: Explained, owner_id: str) -> None:
    assert conversation_lists.count(store, owner_id, EVERYTHING) > 50
    assert "Index Only Scan" in store.plan or "USING COVERING INDEX" in store.plan, store.plan
    conversation_lists.count(store, owner_id, ConversationFilter(created_from=SPRING))
    assert "Index Only Scan" in store.plan or "USING COVERING INDEX" in store.plan, store.plan


def test_sandboxes_have_an_index(store: Explained, owner_id: str) -> None:
    for page_id in (None, encode_page_id(sandbox_lists.NEWEST_FIRST, NEWEST.replace(month=6), "8" * 32)):
        assert sandbox_lists.search(store, owner_id, page_id, 3).items
        assert not any(map(store.looks_through, ("conversation", "sandbox"))), store.plan
        assert not store.sorts(), store.plan
        assert "ix_sandbox_listed" in store.plan or store.is_postgresql, store.plan


@pytest.mark.parametrize("status", ["RUNNING", "ERROR"])
def test_sandboxes_of_a_status_are_searched_among_the_owner_s(store: Explained, owner_id: str, status: str) -> None:
    found = sandbox_lists.search(store, owner_id, None, 3, status).items
    assert bool(found) == (status == "RUNNING")
    assert "ix_sandbox_listed" in store.plan, store.plan


@pytest.mark.parametrize("stage", [None, Stage.READY])
@pytest.mark.parametrize("name", sorted(start_tasks.SORT_ORDERS))
def test_start_tasks_have_an_index(store: Explained, owner_id: str, name: str, stage: Stage | None) -> None:
    column, descending = start_tasks.SORT_ORDERS[name]
    second = encode_page_id(Order(column, col(StartTask.id), descending), NEWEST.replace(month=6), "8" * 32)
    for page_id in (None, second):
        with store.reading() as session, plans_of_sessions(store) as plans:
            found = start_tasks.search(
                session,
                owner_id,
                conversation_id=None,
                created_from=None,
                stage=stage,
                sort_order=name,
                page_id=page_id,
                limit=3,
            )
        assert found.items
        assert len(plans) == 2  # of the sizes of their requests, and of those that fit into a page
        for plan in plans:
            assert_along(plan, f"ix_start_task_owner_id_{name.removesuffix('_DESC').lower()}_id")


@pytest.mark.parametrize("name", sorted(start_tasks.SORT_ORDERS))
def test_start_tasks_of_a_rare_stage_are_searched_among_the_owners(store: Explained, owner_id: str, name: str) -> None:
    filters: dict[str, Any] = {"conversation_id": None, "created_from": None, "stage": Stage.ERROR}
    with store.reading() as session, plans_of_sessions(store) as plans:
        found = start_tasks.search(session, owner_id, **filters, sort_order=name, page_id=None, limit=3)
    assert found.items == []
    assert len(plans) == 2
    for plan in plans:
        assert "ix_start_task_owner_id_" in plan, plan


@pytest.mark.parametrize("descending", [False, True], ids=["oldest", "newest"])
def test_events_have_an_index(store: Explained, owner_id: str, descending: bool) -> None:
    with store.reading() as session:
        told = session.exec(
            select(Event.conversation_id).join(Conversation).where(Conversation.owner_id == owner_id)
        ).first()
    assert told is not None
    order = Order(col(Event.timestamp), col(Event.seq), descending, of=told)
    for page_id in (None, encode_page_id(order, NEWEST.replace(day=1, minute=10), 1)):
        with store.reading() as session, plans_of_sessions(store) as plans:
            events.search(session, told, owner_id, EventFilter(), descending=descending, page_id=page_id, limit=3)
        assert len(plans) == 2  # of their sizes, and of those that fit into a page
        for plan in plans:
            assert_along(plan, "ix_event_conversation_id_timestamp_seq")


def assert_along(plan: str, index: str) -> None:
    assert index in plan, plan
    assert "Sort" not in plan, plan
    assert "TEMP B-TREE" not in plan, plan

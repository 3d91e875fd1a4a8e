"""Query plans of lists: they use an index, start at the page's first row, and read only the owner's rows."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlmodel import col, select

from shared.conversations import events, start_tasks
from shared.conversations import lists as conversation_lists
from shared.conversations.events import EventFilter
from shared.conversations.lists import SORT_ORDERS, ConversationFilter
from shared.conversations.start_tasks import StartTaskFilter
from shared.models import Conversation, Event, StartTask
from shared.sandboxes import lists as sandbox_lists
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes import quotas
from shared.sandboxes import status as sandbox_status
from shared.sql.pagination import Order, encode_page_id
from shared.states import Stage
from tests.bench.seeding import NEWEST
from tests.shared.db.explained import Explained, ExplainedStores
from tests.shared.db.plans import plans_of_sessions

EVERYTHING = ConversationFilter()
SPRING = datetime(2026, 4, 1, tzinfo=UTC)
STORES = {"sqlite": "sqlite_stores", "postgresql": "postgres_stores"}
ORDERS = sorted(SORT_ORDERS)


@pytest.fixture(scope="module")
def made() -> Iterator[ExplainedStores]:
    with ExitStack() as closing:
        yield ExplainedStores(closing)


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, made: ExplainedStores) -> Explained:
    """Thousands of conversations of many users."""
    return made.of(request.param, request.getfixturevalue(STORES[request.param]))


@pytest.fixture(params=["average", "heavy"])
def owner_id(store: Explained, request: pytest.FixtureRequest) -> str:
    """A user with about a hundred conversations, and a user with more."""
    return (store.seeded.heavy if request.param == "heavy" else store.seeded.average[3]).id


def search(store: Explained, owner_id: str, which: ConversationFilter, order: str, page_id: str | None = None) -> int:
    found = conversation_lists.search(store, owner_id, which, sort_order=order, page_id=page_id, limit=20)
    return len(found.items)


def second_page(name: str) -> str:
    """The id of a page that has most of the rows after it."""
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


FILTERS = pytest.mark.parametrize(
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


def of_owner(store: Explained, owner_id: str, which: ConversationFilter) -> ConversationFilter:
    """The filter, with a sandbox of the owner."""
    return which if which.sandbox_id is None else ConversationFilter(sandbox_id=store.seeded.sandboxes[owner_id][0])


@pytest.mark.parametrize("order", ORDERS)
@FILTERS
def test_filters_read_the_owner_s_rows_only(
    store: Explained, owner_id: str, which: ConversationFilter, order: str
) -> None:
    search(store, owner_id, of_owner(store, owner_id, which), order)
    assert not store.looks_through("conversation"), store.plan


@FILTERS
def test_counts_read_the_owner_s_rows_only(store: Explained, owner_id: str, which: ConversationFilter) -> None:
    conversation_lists.count(store, owner_id, of_owner(store, owner_id, which))
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
    # PostgreSQL caches a generic plan for a prepared statement, from its sixth execution on.
    before = kept_plans(store)
    for _ in range(10):
        search(store, owner_id, which, "CREATED_AT_DESC")
        conversation_lists.count(store, owner_id, which)
    assert has_custom_plan == (kept_plans(store) == before)


def kept_plans(store: Explained) -> int:
    """The number of executions of prepared statements on the first connection to PostgreSQL."""
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


def test_history_of_a_sandbox_has_an_index(store: Explained, owner_id: str) -> None:
    sandbox_id = store.seeded.sandboxes[owner_id][0]
    with store.transaction() as session, plans_of_sessions(store) as plans:
        assert len(sandbox_queries.transitions(session, sandbox_id)) == 3
        sandbox_status._cut_history(session, sandbox_id)
    assert len(plans) == 2
    assert all("ix_sandbox_transition_sandbox_id" in plan for plan in plans), plans


@pytest.mark.parametrize("stage", [None, Stage.READY])
@pytest.mark.parametrize("name", sorted(start_tasks.SORT_ORDERS))
def test_start_tasks_have_an_index(store: Explained, owner_id: str, name: str, stage: Stage | None) -> None:
    column, descending = start_tasks.SORT_ORDERS[name]
    second = encode_page_id(Order(column, col(StartTask.id), descending), NEWEST.replace(month=6), "8" * 32)
    for page_id in (None, second):
        with store.reading() as session, plans_of_sessions(store) as plans:
            which = StartTaskFilter(stage=stage)
            found = start_tasks.search(session, owner_id, which, sort_order=name, page_id=page_id, limit=3)
        assert found.items
        assert len(plans) == 2  # one for the sizes of their requests, one for the tasks that fit into a page
        for plan in plans:
            assert_along(plan, f"ix_start_task_owner_id_{name.removesuffix('_DESC').lower()}_id")


@pytest.mark.parametrize("name", sorted(start_tasks.SORT_ORDERS))
def test_start_tasks_of_a_rare_stage_are_searched_among_the_owners(store: Explained, owner_id: str, name: str) -> None:
    which = StartTaskFilter(stage=Stage.ERROR)
    with store.reading() as session, plans_of_sessions(store) as plans:
        found = start_tasks.search(session, owner_id, which, sort_order=name, page_id=None, limit=3)
    assert found.items == []
    assert len(plans) == 2
    for plan in plans:
        assert "ix_start_task_owner_id_" in plan, plan


def test_failed_starts_of_an_owner_have_an_index(store: Explained, owner_id: str) -> None:
    with store.transaction() as session, plans_of_sessions(store) as plans:
        start_tasks.limit_failed(session, owner_id)
    [plan] = plans
    assert_along(plan, "ix_start_task_owner_id_failed_at")


def test_unfinished_starts_are_searched_among_the_owners(store: Explained, owner_id: str) -> None:
    with store.reading() as session, plans_of_sessions(store) as plans:
        assert conversation_lists.list_starting(session, owner_id) == []
    assert len(plans) == 2
    assert re.search("ix_start_task_(unfinished|owner_id_)", plans[0]), plans[0]


def test_sandboxes_in_which_conversations_are_started_are_read_without_the_history(
    store: Explained, owner_id: str
) -> None:
    """Under the user's lock, when a quota's policy pauses the oldest sandbox."""
    with store.reading() as session, plans_of_sessions(store) as plans:
        assert session.exec(quotas._with_unfinished_starts(owner_id)).all() == []
    [plan] = plans
    assert "ix_start_task_unfinished" in plan, plan


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
        assert len(plans) == 2  # one for their sizes, and one for the events that fit into a page
        for plan in plans:
            assert_along(plan, "ix_event_conversation_id_timestamp_seq")


def assert_along(plan: str, index: str) -> None:
    assert index in plan, plan
    assert "Sort" not in plan, plan
    assert "TEMP B-TREE" not in plan, plan

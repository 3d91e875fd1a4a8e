"""Keyset pages list every row once, whatever changes between two pages, and invalid page ids are refused."""

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlmodel import col, select

from shared.clock import now
from shared.db.database import Database
from shared.errors import Invalid
from shared.models import Conversation, Event, Sandbox
from shared.sql.pagination import Order, Page, read_page
from tests.factories import ApiUser, make_conversation, make_event, make_sandbox

NOON = datetime(2026, 11, 20, 12, 0, 0, 123456, tzinfo=UTC)
NEWEST_FIRST = Order(col(Conversation.created_at), col(Conversation.id), descending=True)
OLDEST_FIRST = Order(col(Conversation.created_at), col(Conversation.id))
BY_TITLE = Order(col(Conversation.title), col(Conversation.id))
BY_ARRIVAL = Order(col(Event.timestamp), col(Event.seq))


@pytest.fixture
def sandbox(database: Database, user: ApiUser) -> Sandbox:
    """The sandbox of the conversations."""
    return make_sandbox(database, user)


@pytest.fixture
def add(database: Database, user: ApiUser, sandbox: Sandbox) -> Callable[..., str]:
    """A function that adds a conversation and returns its id."""

    def add_one(created_at: datetime = NOON, **columns: Any) -> str:
        return make_conversation(database, user, sandbox, created_at=created_at, **columns).id

    return add_one


def read(database: Database, order: Order, page_id: str | None = None, limit: int = 2) -> Page[Any]:
    with database.reading() as session:
        return read_page(session, select(order.column.class_), order, page_id, limit)


def read_all(database: Database, order: Order, limit: int = 2) -> list[Any]:
    items, page_id = [], None
    while True:
        page = read(database, order, page_id, limit)
        items += page.items
        page_id = page.next_page_id
        if page_id is None:
            return items
        assert len(page.items) == limit


def encoded(content: Any) -> str:
    text = content if isinstance(content, str) else json.dumps(content)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("order", [NEWEST_FIRST, OLDEST_FIRST], ids=["descending", "ascending"])
def test_rows_with_equal_times_are_paged_once_each(
    database: Database, add: Callable[..., str], order: Order, limit: int
) -> None:
    times = [NOON] * 4 + [NOON + timedelta(microseconds=1)] * 3
    made = [(time, add(time)) for time in times]
    expected = [row_id for _, row_id in sorted(made, reverse=order.descending)]
    assert [row.id for row in read_all(database, order, limit)] == expected


def test_rows_with_equal_titles_are_paged_once_each(database: Database, add: Callable[..., str]) -> None:
    made = {add(title=title) for title in ("b", "a", "a", "Ä", "", "a'; --")}
    rows = read_all(database, BY_TITLE)
    assert {row.id for row in rows} == made
    assert len(rows) == len(made)


def test_events_with_equal_timestamps_keep_their_order_of_arrival(
    database: Database, user: ApiUser, sandbox: Sandbox
) -> None:
    conversation = make_conversation(database, user, sandbox)
    sent = [make_event(database, conversation, timestamp=NOON).id for _ in range(5)]
    assert [event.id for event in read_all(database, BY_ARRIVAL)] == sent


def test_rows_inserted_between_pages_shift_no_row(database: Database, add: Callable[..., str]) -> None:
    old = [add(NOON - timedelta(hours=hours)) for hours in range(5)]
    first = read(database, NEWEST_FIRST)
    add(NOON + timedelta(hours=1))
    add(NOON - timedelta(minutes=30))
    second = read(database, NEWEST_FIRST, first.next_page_id)
    assert [row.id for row in first.items + second.items] == old[:4]


def test_next_page_is_read_after_the_last_row_of_a_page_was_deleted(
    database: Database, add: Callable[..., str]
) -> None:
    rows = [add(NOON - timedelta(hours=hours)) for hours in range(4)]
    first = read(database, NEWEST_FIRST)
    with database.transaction() as session:
        session.delete(session.get_one(Conversation, rows[1]))
    assert [row.id for row in read(database, NEWEST_FIRST, first.next_page_id).items] == rows[2:]


def test_last_page_has_no_next_page_id(database: Database, add: Callable[..., str]) -> None:
    assert read(database, NEWEST_FIRST) == Page([], None)
    add()
    add()
    page = read(database, NEWEST_FIRST)
    assert len(page.items) == 2
    assert page.next_page_id is None


@pytest.mark.parametrize(
    "page_id",
    [
        "",
        "0",
        "!!!",
        "ünïcode",
        "a" * 5000,
        "\x00",
        encoded(""),
        encoded("{"),
        encoded("[" * 100_000),
        encoded(None),
        encoded({}),
        encoded([]),
        encoded(["conversation.created_at", True, NOON.isoformat()]),
        encoded(["conversation.created_at", True, NOON.isoformat(), "0" * 32, "more"]),
        encoded(["conversation.created_at", False, NOON.isoformat(), "0" * 32]),
        encoded(["created_at", True, NOON.isoformat(), "0" * 32]),
        encoded(["sandbox.created_at", True, NOON.isoformat(), "0" * 32]),
        encoded(["conversation.created_at", True, "", NOON.isoformat(), "0" * 32]),
        encoded(["conversation.updated_at", True, NOON.isoformat(), "0" * 32]),
        encoded(["conversation.created_at", True, "yesterday", "0" * 32]),
        encoded(["conversation.created_at", True, None, "0" * 32]),
        encoded(["conversation.created_at", True, 12, "0" * 32]),
        encoded(["conversation.created_at", True, "2026-11-20T12:00:00", "0" * 32]),
        encoded(["conversation.created_at", True, "0001-01-01T00:00:00+23:59", "0" * 32]),
        encoded(["conversation.created_at", True, "9999-12-31T23:59:59-23:59", "0" * 32]),
        encoded(["conversation.created_at", True, NOON.isoformat(), None]),
        encoded(["conversation.created_at", True, NOON.isoformat(), 7]),
        encoded(["conversation.created_at", True, NOON.isoformat(), ["0"]]),
        encoded(["conversation.created_at", True, NOON.isoformat(), "\x00"]),
        encoded(["conversation.created_at", True, NOON.isoformat(), "\ud800"]),
    ],
)
def test_malformed_page_id_is_refused(database: Database, page_id: str) -> None:
    with pytest.raises(Invalid, match="page_id"):
        read(database, NEWEST_FIRST, page_id)


@pytest.mark.parametrize("tie", ["1", 1.5, True, None, 10**30, -(10**30), "Infinity"])
def test_page_id_with_an_invalid_tie_breaker_is_refused(database: Database, tie: Any) -> None:
    with pytest.raises(Invalid, match="page_id"):
        read(database, BY_ARRIVAL, encoded(["event.timestamp", False, now().isoformat(), tie]))


@pytest.mark.parametrize("title", ["\x00", "\udfff", 5, None])
def test_page_id_with_an_invalid_sort_value_is_refused(database: Database, title: Any) -> None:
    with pytest.raises(Invalid, match="page_id"):
        read(database, BY_TITLE, encoded(["conversation.title", False, title, "0" * 32]))

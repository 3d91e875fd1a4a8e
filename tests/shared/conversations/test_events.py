"""Events: stored without duplicates, for repeated and for large batches."""

from datetime import UTC, datetime, timedelta

import pytest

from shared.conversations import events
from shared.conversations.events import EventFilter
from shared.db.database import Database
from shared.models import Conversation, Event
from tests.factories import ApiUser, make_conversation, make_sandbox
from tests.interleaving import overlap
from tests.rows import all_rows

NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
ALL = EventFilter()


@pytest.fixture
def conversation(database: Database, user: ApiUser) -> Conversation:
    """The conversation that has the events."""
    return make_conversation(database, user, make_sandbox(database, user))


def event(conversation: Conversation, number: int, text: str = "") -> Event:
    at = NOON + timedelta(seconds=number)
    body = {"id": f"e{number}", "text": text}
    return Event(conversation_id=conversation.id, id=f"e{number}", kind=f"K{number % 2}", timestamp=at, body=body)


def store(database: Database, *rows: Event) -> None:
    with database.transaction() as session:
        events.store(session, rows)


def found(database: Database, owner: ApiUser, conversation: Conversation, which: EventFilter = ALL) -> list[str]:
    with database.reading() as session:
        page = events.search(session, conversation.id, owner.id, which, descending=False, page_id=None, limit=100)
        assert events.count(session, conversation.id, owner.id, which) == len(page.items)
    return [item.id for item in page.items]


def test_event_sent_twice_keeps_its_first_version(
    database: Database, user: ApiUser, conversation: Conversation
) -> None:
    store(database, event(conversation, 1, "first"), event(conversation, 1, "in the same batch"))
    store(database, event(conversation, 1, "later"), event(conversation, 2))
    assert found(database, user, conversation) == ["e1", "e2"]
    with database.reading() as session:
        first, unknown = events.get_many(session, conversation.id, user.id, ["e1", "e9"])
    assert first is not None
    assert first.body["text"] == "first"
    assert unknown is None


def test_concurrent_batches_store_no_duplicate(database: Database, user: ApiUser, conversation: Conversation) -> None:
    overlap(
        database,
        lambda session: events.store(session, [event(conversation, 1), event(conversation, 2)]),
        lambda session: events.store(session, [event(conversation, 2), event(conversation, 3)]),
    )
    assert found(database, user, conversation) == ["e1", "e2", "e3"]


def test_large_batch_is_stored(database: Database, user: ApiUser, conversation: Conversation) -> None:
    store(database, *(event(conversation, number) for number in range(12_000)))
    with database.reading() as session:
        assert events.count(session, conversation.id, user.id, ALL) == 12_000


def test_storing_no_events_writes_nothing(database: Database, user: ApiUser, conversation: Conversation) -> None:
    store(database, event(conversation, 1))
    before = all_rows(database)
    store(database)
    assert all_rows(database) == before
    assert found(database, user, conversation) == ["e1"]


def test_time_filters_include_the_start_and_exclude_the_end(
    database: Database, user: ApiUser, conversation: Conversation
) -> None:
    store(database, *(event(conversation, number) for number in range(5)))
    until, since = NOON + timedelta(seconds=3), NOON + timedelta(seconds=1)
    which = EventFilter(timestamp_from=since, timestamp_before=until)
    assert found(database, user, conversation, which) == ["e1", "e2"]
    assert found(database, user, conversation, EventFilter(kind="K1")) == ["e1", "e3"]


def test_events_of_another_user_are_not_found(
    database: Database, user: ApiUser, other_user: ApiUser, conversation: Conversation
) -> None:
    hidden = make_conversation(database, user, make_sandbox(database, user), listed=False)
    store(database, event(conversation, 1), event(hidden, 1))
    assert found(database, other_user, conversation) == []
    assert found(database, user, hidden) == []


class TestMaxSearched:
    """A sandbox may report any number of events, and a webhook searches under locks, on SQLite all writers'."""

    @pytest.fixture(autouse=True)
    def _three(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("SEARCHED", "SEARCHED_FOR_MESSAGES"):
            monkeypatch.setattr(events, name, 3, raising=False)

    @pytest.mark.parametrize(("updates", "ids"), [(2, ["e0"]), (3, [])])
    def test_newest_events_are_among_them(
        self, database: Database, conversation: Conversation, updates: int, ids: list[str]
    ) -> None:
        store_kinds(database, conversation, "ActionEvent", *[events.STATE] * updates)
        with database.reading() as session:
            assert [event.id for event in events.newest(session, conversation.id)] == ids

    @pytest.mark.parametrize(("others", "ids"), [(2, ["e2"]), (3, [])])
    def test_status_reports_are_among_them(
        self, database: Database, conversation: Conversation, others: int, ids: list[str]
    ) -> None:
        store_kinds(database, conversation, *["ActionEvent"] * others, events.ERROR)
        with database.reading() as session:
            found = events.status_reports(session, conversation.id, NOON - timedelta(seconds=1))
        assert [event.id for event in found] == ids

    @pytest.mark.parametrize(("others", "message"), [(2, "e0"), (3, None)])
    def test_user_s_message_is_among_them(
        self, database: Database, conversation: Conversation, others: int, message: str | None
    ) -> None:
        store_kinds(database, conversation, events.MESSAGE, *["ActionEvent"] * others)
        with database.reading() as session:
            assert events.find_user_message(session, conversation.id, NOON + timedelta(hours=1)) == message


def store_kinds(database: Database, conversation: Conversation, *kinds: str) -> None:
    """Store events of a user of these kinds, in this order."""
    for number, kind in enumerate(kinds):
        row = event(conversation, number)
        row.kind, row.body = kind, {"source": "user"}
        store(database, row)

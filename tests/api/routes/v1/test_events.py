"""Events of a conversation, read from the store."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from fastapi.testclient import TestClient

from api.schemas.v1 import events as schemas
from shared.db.database import Database
from shared.ids import new_id
from shared.models import Conversation, Event
from shared.states import Status
from tests.factories import ApiUser, make_conversation, make_event, make_sandbox

FIRST = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def conversation(database: Database, user: ApiUser) -> Conversation:
    # The events outlive their sandbox.
    return make_conversation(database, user, make_sandbox(database, user, status=Status.DELETED))


@pytest.fixture
def events(database: Database, conversation: Conversation) -> list[Event]:
    kinds = ("SystemPromptEvent", "MessageEvent", "ActionEvent", "ObservationEvent", "MessageEvent")
    return [
        make_event(database, conversation, kind=kind, timestamp=FIRST + timedelta(minutes=number))
        for number, kind in enumerate(kinds)
    ]


def _get(client: TestClient, user: ApiUser, conversation_id: str, path: str = "", **params: Any) -> Any:
    response = client.get(f"/api/v1/conversation/{conversation_id}/events{path}", params=params, headers=user.headers)
    assert response.status_code == 200, response.text
    return response.json()


def test_events_are_returned_as_they_were_sent(
    client: TestClient, user: ApiUser, conversation: Conversation, database: Database
) -> None:
    body = {"id": "e1", "kind": "MessageEvent", "timestamp": "2026-01-01T00:00:00", "text": "a\0b\ud83e \ud800 ü"}
    make_event(database, conversation, id="e1", body=body)
    assert _get(client, user, conversation.id, "/search") == {"items": [body], "next_page_id": None}
    assert _get(client, user, conversation.id, id="e1") == [body]


def test_events_are_found_by_each_spelling_of_their_ids(
    client: TestClient, user: ApiUser, conversation: Conversation, database: Database
) -> None:
    for written in (str(uuid4()), uuid4().hex):
        make_event(database, conversation, id=written, body={"id": written})
        requested = [written, UUID(written).hex, str(UUID(written)).upper()]
        assert _get(client, user, conversation.id, id=requested) == [{"id": written}] * 3


def test_page_is_written_event_by_event(
    client: TestClient, user: ApiUser, conversation: Conversation, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Any] = []

    def note(body: Any) -> str:
        written.append(body)
        return json.dumps(body)

    monkeypatch.setattr(schemas, "write_document", note)
    assert _get(client, user, conversation.id, "/search")["items"] == written
    assert _get(client, user, conversation.id, id=[events[0].id, "unknown"]) == [events[0].body, None]
    assert written == [event.body for event in events] + [events[0].body, None]


def test_events_are_paged_in_both_orders(
    client: TestClient, user: ApiUser, conversation: Conversation, events: list[Event]
) -> None:
    ids = [event.id for event in events]
    for sort_order, expected in ((None, ids), ("TIMESTAMP", ids), ("TIMESTAMP_DESC", ids[::-1])):
        params = {"sort_order": sort_order} if sort_order else {}
        found: list[str] = []
        page: dict[str, Any] = {"next_page_id": ""}
        while page["next_page_id"] is not None:
            next_page = {"page_id": page["next_page_id"]} if page["next_page_id"] else {}
            page = _get(client, user, conversation.id, "/search", limit=2, **params, **next_page)
            found += [item["id"] for item in page["items"]]
        assert found == expected


@pytest.mark.usefixtures("_small_pages")
@pytest.mark.parametrize("sort_order", ["TIMESTAMP", "TIMESTAMP_DESC"])
def test_pages_have_a_size_limit(
    client: TestClient, user: ApiUser, conversation: Conversation, database: Database, sort_order: str
) -> None:
    sizes = [
        10,
        3,
        3,
        3,
        0,
        20,
        5,
        1,
    ]  # in thousands of bytes; two are larger than a page, as events of earlier versions may be
    ids = [
        make_event(database, conversation, timestamp=FIRST + timedelta(minutes=number), body=_large(number, size)).id
        for number, size in enumerate(sizes)
    ]
    pages: list[int] = []
    found: list[str] = []
    page: dict[str, Any] = {}
    while page.get("next_page_id", "") is not None:
        following = {"page_id": page["next_page_id"]} if page else {}
        page = _get(client, user, conversation.id, "/search", sort_order=sort_order, **following)
        pages.append(len(page["items"]))
        found += [item["id"] for item in page["items"]]
    expected = [1, 2, 2, 1, 2] if sort_order == "TIMESTAMP" else [2, 1, 3, 1, 1]
    assert pages == expected
    numbers = [f"e{number}" for number in range(len(ids))]
    assert found == (numbers if sort_order == "TIMESTAMP" else numbers[::-1])


@pytest.mark.usefixtures("_small_pages")
def test_batch_of_large_events_is_refused(
    client: TestClient, user: ApiUser, conversation: Conversation, database: Database
) -> None:
    ids = [make_event(database, conversation, body=_large(number, size)).id for number, size in enumerate((10, 3, 3))]
    assert len(_get(client, user, conversation.id, id=ids[1:])) == 2
    assert len(_get(client, user, conversation.id, id=ids[:1])) == 1
    path = f"/api/v1/conversation/{conversation.id}/events"
    response = client.get(path, params={"id": ids}, headers=user.headers)
    assert response.status_code == 413
    assert "request fewer" in response.json()["detail"]


@pytest.fixture
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.sql.pagination.MAX_PAGE_BYTES", 8500)


def _large(number: int, kilobytes: int) -> dict[str, Any]:
    return {"id": f"e{number}", "kind": "MessageEvent", "text": "a" * (kilobytes * 1000)}


def test_equal_times_keep_the_order_of_arrival(
    client: TestClient, user: ApiUser, conversation: Conversation, database: Database
) -> None:
    ids = [make_event(database, conversation, timestamp=FIRST).id for _ in range(4)]
    page = _get(client, user, conversation.id, "/search", limit=3)
    rest = _get(client, user, conversation.id, "/search", limit=3, page_id=page["next_page_id"])
    assert [item["id"] for item in page["items"] + rest["items"]] == ids


def test_filters_agree_with_count(
    client: TestClient, user: ApiUser, conversation: Conversation, events: list[Event]
) -> None:
    ids = [event.id for event in events]
    for params, expected in (
        ({}, ids),
        ({"kind__eq": "MessageEvent"}, [ids[1], ids[4]]),
        ({"kind__eq": "PauseEvent"}, []),
        # Times with or without a zone: the agent server's have none, and are in UTC.
        ({"timestamp__gte": "2026-01-01T00:01:00", "timestamp__lt": "2026-01-01T00:03:00"}, ids[1:3]),
        ({"timestamp__gte": "2026-01-01T01:01:00+01:00", "timestamp__lt": "2026-01-01T00:03:00Z"}, ids[1:3]),
    ):
        found = _get(client, user, conversation.id, "/search", **params)["items"]
        assert [item["id"] for item in found] == expected
        assert _get(client, user, conversation.id, "/count", **params) == len(expected)


def test_batch_keeps_its_order(
    client: TestClient, user: ApiUser, conversation: Conversation, events: list[Event]
) -> None:
    ids = [events[2].id, "unknown", events[0].id]
    found = _get(client, user, conversation.id, id=ids)
    assert [item and item["id"] for item in found] == [events[2].id, None, events[0].id]
    path = f"/api/v1/conversation/{conversation.id}/events"
    for many, status in ((["x"] * 100, 200), (["x"] * 101, 400), ([], 422)):
        assert client.get(path, params={"id": many}, headers=user.headers).status_code == status


@pytest.mark.usefixtures("events")
def test_events_of_other_conversations_are_not_returned(
    client: TestClient, user: ApiUser, other_user: ApiUser, conversation: Conversation, database: Database
) -> None:
    hidden = make_conversation(database, user, make_sandbox(database, user), listed=False)
    make_event(database, hidden, id="hidden")
    empty = make_conversation(database, other_user, make_sandbox(database, other_user))
    requested = ((other_user, conversation.id), (other_user, empty.id), (user, new_id()), (user, hidden.id))
    for owner, conversation_id in requested:
        assert _get(client, owner, conversation_id, "/search") == {"items": [], "next_page_id": None}
        assert _get(client, owner, conversation_id, "/count") == 0
        assert _get(client, owner, conversation_id, id="hidden") == [None]


@pytest.mark.parametrize("path", ["/search", "/count"])
def test_unknown_kinds_are_refused(client: TestClient, user: ApiUser, conversation: Conversation, path: str) -> None:
    response = client.get(
        f"/api/v1/conversation/{conversation.id}/events{path}?kind__eq=NoSuchEvent", headers=user.headers
    )
    assert response.status_code == 422

"""Webhooks: the reports that each sandbox may send. Each event is stored once."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.exc import OperationalError
from sqlmodel import Session, select

from shared.changes.recorder import Usage
from shared.conversations import events
from shared.conversations import queries as conversation_queries
from shared.conversations.webhook_ingest import NODE_HEADER
from shared.db.database import Database
from shared.ids import new_id
from shared.models import Conversation, Event, Sandbox
from shared.states import Desired, Stage, Status
from tests.api.agent_reports import FIRST, conversation_report, event_report
from tests.factories import ApiUser, make_conversation, make_sandbox, make_start_task, session_key_of
from tests.rows import as_stored

JSON = {"Content-Type": "application/json"}
Post = Callable[..., int]


MALFORMED: list[Any] = [
    {"id": None},
    {"id": ""},
    {"id": 7},
    {"id": "x" * 65},
    {"id": "a\0b"},
    {"id": "\ud800"},
    {"kind": None},
    {"kind": "K" * 65},
    {"timestamp": None},
    {"timestamp": "yesterday"},
    {"timestamp": 1767225600},
    {"timestamp": "0001-01-01T00:00:00+14:00"},
]


def _stored(database: Database, conversation_id: str) -> list[Event]:
    with database.reading() as session:
        statement = select(Event).where(Event.conversation_id == conversation_id).order_by(Event.seq)  # type: ignore[arg-type]
        return list(session.exec(statement).all())


class TestAuthentication:
    @pytest.mark.parametrize("path", ["/conversations", "/events/" + "a" * 32])
    def test_sandbox_must_authenticate(self, client: TestClient, user: ApiUser, path: str) -> None:
        url = f"/api/v1/webhooks{path}"
        for headers in ({}, user.headers, {"X-Session-API-Key": "wrong"}, {"X-Session-API-Key": user.key}):
            assert client.post(url, json=[], headers=headers).status_code == 401

    def test_sandbox_reports_on_its_own_conversations_only(
        self, post: Post, conversation: Conversation, user: ApiUser, database: Database
    ) -> None:
        key = session_key_of(make_sandbox(database, user))  # even of the same owner
        assert post(f"/events/{conversation.id}", [event_report()], key) == 404
        assert post("/conversations", conversation_report(conversation.id, title="Mine now"), key) == 404
        assert _stored(database, conversation.id) == []
        assert as_stored(database, conversation) == conversation

    def test_sandbox_can_not_claim_a_conversation_that_starts_elsewhere(
        self, post: Post, user: ApiUser, database: Database
    ) -> None:
        task = make_start_task(database, user, make_sandbox(database, user))
        assert post(f"/events/{task.conversation_id}", [event_report()]) == 404

    def test_report_does_not_bring_back_a_failed_start(
        self, post: Post, user: ApiUser, sandbox: Sandbox, database: Database
    ) -> None:
        task = make_start_task(database, user, sandbox, stage=Stage.ERROR)
        assert post(f"/events/{task.conversation_id}", [event_report()]) == 404

    def test_conversation_that_is_being_started_stays_hidden(
        self, post: Post, user: ApiUser, sandbox: Sandbox, database: Database
    ) -> None:
        task = make_start_task(database, user, sandbox, stage=Stage.STARTING_CONVERSATION)
        assert post(f"/events/{task.conversation_id}", [event_report()]) == 200
        with database.reading() as session:
            assert not session.get_one(Conversation, task.conversation_id).listed

    def test_conversation_created_in_the_sandbox_is_adopted(
        self, post: Post, client: TestClient, user: ApiUser, sandbox: Sandbox, database: Database
    ) -> None:
        conversation_id = new_id()
        assert post(f"/events/{conversation_id}", [event_report()]) == 200
        assert post("/conversations", conversation_report(conversation_id)) == 200
        [shown] = client.get("/api/v1/app-conversations/search", headers=user.headers).json()["items"]
        assert (shown["id"], shown["sandbox_id"]) == (conversation_id, sandbox.id)
        assert shown["title"] == f"Conversation {conversation_id[:5]}"
        assert len(_stored(database, conversation_id)) == 1

    def test_warm_sandbox_reports_no_conversations(self, post: Post, user: ApiUser, database: Database) -> None:
        member = make_sandbox(database, user, owner_id=None)
        assert post(f"/events/{new_id()}", [event_report()], session_key_of(member)) == 404

    def test_report_of_a_container_on_a_lost_node_is_dropped(
        self, client: TestClient, user: ApiUser, database: Database
    ) -> None:
        """The sandbox has moved to another node, and the container still runs."""
        moved = make_sandbox(database, user, node_id="node-b")
        known = make_conversation(database, user, moved)
        headers = {"X-Session-API-Key": session_key_of(moved), NODE_HEADER: "node-a"}
        runs = conversation_report(known.id, execution_status="running")
        for path, body in ((f"events/{known.id}", [event_report()]), ("conversations", runs)):
            assert client.post(f"/api/v1/webhooks/{path}", json=body, headers=headers).status_code == 200
        assert _stored(database, known.id) == []
        assert as_stored(database, known) == known
        headers[NODE_HEADER] = "node-b"
        assert client.post("/api/v1/webhooks/conversations", json=runs, headers=headers).status_code == 200
        assert as_stored(database, known).execution_status == "running"

    @pytest.mark.parametrize("path", ["/events/{}", "/conversations"])
    def test_key_of_a_deleted_sandbox_is_rejected(
        self, post: Post, user: ApiUser, database: Database, path: str
    ) -> None:
        gone = make_sandbox(database, user, status=Status.DELETED)
        known, key = make_conversation(database, user, gone), session_key_of(gone)
        for conversation_id in (known.id, new_id()):
            body = [event_report()] if "events" in path else conversation_report(conversation_id, title="Later")
            assert post(path.format(conversation_id), body, key) == 401
        assert _stored(database, known.id) == []
        assert as_stored(database, known) == known

    @pytest.mark.parametrize(
        ("status", "columns"),
        [
            (Status.DELETING, {}),
            (Status.RUNNING, {"desired": Desired.DELETED, "generation": 2}),
            (Status.PAUSED, {}),
        ],
    )
    def test_sandbox_that_is_to_stop_reports_on_known_conversations_only(
        self, post: Post, user: ApiUser, database: Database, status: Status, columns: dict[str, Any]
    ) -> None:
        leaving = make_sandbox(database, user, status=status, **columns)
        known, key = make_conversation(database, user, leaving), session_key_of(leaving)
        assert post(f"/events/{known.id}", [event_report()], key) == 200
        assert post("/conversations", conversation_report(known.id, title="The last word"), key) == 200
        assert len(_stored(database, known.id)) == 1
        assert as_stored(database, known).title == "The last word"
        new = new_id()
        assert post(f"/events/{new}", [event_report()], key) == 404
        assert post("/conversations", conversation_report(new), key) == 404
        with database.reading() as session:
            assert session.get(Conversation, new) is None

    @pytest.mark.parametrize("status", [Status.STARTING, Status.RUNNING, Status.PAUSED])
    def test_sandbox_that_is_to_run_may_report_a_new_conversation(
        self, post: Post, user: ApiUser, database: Database, status: Status
    ) -> None:
        resumed = make_sandbox(database, user, status=status, desired=Desired.RUNNING, generation=2)
        assert post(f"/events/{new_id()}", [event_report()], session_key_of(resumed)) == 200

    def test_two_concurrent_reports_add_one_conversation(
        self, post: Post, database: Database, monkeypatch: pytest.MonkeyPatch, conversation: Conversation
    ) -> None:
        find, calls = conversation_queries.find, [0]

        def find_too_early(*args: Any, **kwargs: Any) -> Conversation | None:
            calls[0] += 1
            return None if calls[0] == 1 else find(*args, **kwargs)

        monkeypatch.setattr(conversation_queries, "find", find_too_early)
        assert post(f"/events/{conversation.id}", [event_report()]) == 200
        assert len(_stored(database, conversation.id)) == 1


class TestEvents:
    def test_event_that_is_sent_twice_is_stored_once(
        self, post: Post, conversation: Conversation, database: Database
    ) -> None:
        events = [event_report(after=number, text="a\0b") for number in range(3)]
        for batch in (events[:2], events, [*events, events[0]]):
            assert post(f"/events/{conversation.id}", batch) == 200
        stored = _stored(database, conversation.id)
        assert [event.body for event in stored] == events
        assert [event.timestamp for event in stored] == [FIRST + timedelta(seconds=n) for n in range(3)]

    def test_event_ids_are_unique_within_a_conversation_only(
        self, post: Post, conversation: Conversation, user: ApiUser, sandbox: Sandbox, database: Database
    ) -> None:
        twin, event = make_conversation(database, user, sandbox), event_report()
        for conversation_id in (conversation.id, twin.id):
            assert post(f"/events/{conversation_id}", [event]) == 200
            assert len(_stored(database, conversation_id)) == 1

    def test_malformed_event_is_a_422_that_names_it(
        self, client: TestClient, sandbox: Sandbox, conversation: Conversation, database: Database
    ) -> None:
        headers = {"X-Session-API-Key": session_key_of(sandbox)} | JSON
        for wrong in MALFORMED:
            content = json.dumps([event_report(), event_report() | wrong])
            response = client.post(f"/api/v1/webhooks/events/{conversation.id}", content=content, headers=headers)
            assert response.status_code == 422, wrong
            [entry] = response.json()["detail"]
            assert entry["loc"] == ["body", "1"]
            assert next(iter(wrong)) in entry["msg"]
        assert (
            _stored(database, conversation.id) == []
        )  # all or nothing, because the agent server sends the whole batch again

    def test_events_in_another_shape_are_refused(self, post: Post, conversation: Conversation) -> None:
        bodies: list[Any] = [{}, None, "text", [1], [None], [[]], [event_report(deep=[[[]]]), 3]]
        for body in bodies:
            assert post(f"/events/{conversation.id}", body) == 422, body

    @pytest.mark.parametrize("value", ["NaN", "1e999", "[" * 200 + "]" * 200], ids=["NaN", "infinity", "deep"])
    def test_event_that_can_not_be_stored_keeps_its_essential_fields_and_blocks_no_other(
        self, client: TestClient, sandbox: Sandbox, conversation: Conversation, database: Database, value: str
    ) -> None:
        essential = '"id":"a","kind":"K","timestamp":"2026-01-01T00:00:00"'
        later = event_report()
        response = client.post(
            f"/api/v1/webhooks/events/{conversation.id}",
            content=f'[{{{essential},"x":{value}}},{json.dumps(later)}]',
            headers={"X-Session-API-Key": session_key_of(sandbox)} | JSON,
        )
        assert response.status_code == 200
        bodies = [event.body for event in _stored(database, conversation.id)]
        assert bodies == [json.loads(f"{{{essential}}}"), later]

    def test_thousands_of_events_are_stored_in_small_transactions(
        self, post: Post, conversation: Conversation, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stored: list[int] = []
        transaction, store = database.transaction, events.store
        commits = iter(range(100))

        @contextmanager
        def counted() -> Iterator[Session]:
            with transaction() as session:
                yield session
            next(commits)

        def store_and_count(session: Session, rows: Sequence[Event]) -> Usage:
            stored.append(len(rows))
            return store(session, rows)

        monkeypatch.setattr(database, "transaction", counted)
        monkeypatch.setattr(events, "store", store_and_count)
        reported = [event_report(after=number) for number in range(2_001)]
        assert post(f"/events/{conversation.id}", reported) == 200
        assert (stored, next(commits)) == ([500, 500, 500, 500, 1], 5)
        assert [event.id for event in _stored(database, conversation.id)] == [event["id"] for event in reported]

    def test_unavailable_store_is_a_503(
        self, post: Post, conversation: Conversation, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise OperationalError("INSERT", {}, Exception("gone"))

        event = event_report()
        with monkeypatch.context() as down:
            down.setattr("shared.conversations.events.store", fail)
            assert post(f"/events/{conversation.id}", [event]) == 503
        assert post(f"/events/{conversation.id}", [event]) == 200  # repeated
        assert len(_stored(database, conversation.id)) == 1

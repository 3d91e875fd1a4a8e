"""Webhooks that are too large to parse: the API reduces or refuses them first."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlmodel import select

from api import json_text
from api.request import webhook_body
from shared.db.database import Database
from shared.models import Conversation, Event, Sandbox
from tests.api.agent_reports import JSON, conversation_report, event_report
from tests.factories import session_key_of

MEGABYTE = 1024 * 1024


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the parsed documents."""
    sizes: list[int] = []

    def note(text: bytes) -> Any:
        sizes.append(len(text))
        return json_text.load(text)

    monkeypatch.setattr(webhook_body, "load", note)
    return sizes


def send(client: TestClient, sandbox: Sandbox, path: str, content: bytes) -> Any:
    headers = {"X-Session-API-Key": session_key_of(sandbox)} | JSON
    return client.post(f"/api/v1/webhooks/{path}", content=content, headers=headers)


def stored(database: Database, conversation: Conversation) -> list[Any]:
    with database.reading() as session:
        found = select(Event).where(Event.conversation_id == conversation.id).order_by(Event.seq)  # type: ignore[arg-type]
        return [event.body for event in session.exec(found)]


def test_event_of_31_mb_is_stored_with_its_texts_cut_and_is_never_parsed_whole(
    client: TestClient, sandbox: Sandbox, conversation: Conversation, database: Database, parsed: list[int]
) -> None:
    large, small = event_report(id="large", text="x" * (31 * MEGABYTE), source="agent"), event_report(id="small")
    response = send(client, sandbox, f"events/{conversation.id}", json.dumps([large, small]).encode())
    assert response.status_code == 200
    first, second = stored(database, conversation)
    assert second == small
    assert {**first, "text": None} == {**large, "text": None}
    assert first["text"].startswith("xxx")
    assert "left out" in first["text"]
    assert max(parsed) <= webhook_body.MAX_DOCUMENT_BYTES


def test_event_of_very_many_values_is_stored_without_them(
    client: TestClient, sandbox: Sandbox, conversation: Conversation, database: Database
) -> None:
    many = event_report(numbers=[1] * (json_text.MAX_VALUES + 1))
    assert send(client, sandbox, f"events/{conversation.id}", json.dumps([many]).encode()).status_code == 200
    del many["numbers"]
    assert stored(database, conversation) == [many]


def test_report_of_many_megabytes_is_accepted(
    client: TestClient, sandbox: Sandbox, conversation: Conversation, parsed: list[int]
) -> None:
    report = conversation_report(conversation.id, title="A title", system_prompt="x" * (8 * MEGABYTE))
    assert send(client, sandbox, "conversations", json.dumps(report).encode()).status_code == 200
    assert max(parsed) <= webhook_body.MAX_DOCUMENT_BYTES


@pytest.mark.parametrize(
    "bulk",
    [b"[" + b"1," * 1_000_000 + b"1]", b"[" * 1_000_000, b'"%b"' % (b"\\n" * 1_000_000)],
    ids=["values", "lists", "escapes"],
)
def test_report_of_very_many_tokens_is_a_422_with_the_reason(
    client: TestClient, sandbox: Sandbox, conversation: Conversation, bulk: bytes
) -> None:
    content = json.dumps(conversation_report(conversation.id, bulk="B")).encode().replace(b'"B"', bulk)
    response = send(client, sandbox, "conversations", content)
    assert response.status_code == 422
    assert response.json()["detail"][0]["msg"] == "there are more than 1000000 brackets, commas, quotes and backslashes"


def test_report_of_a_million_tokens_is_accepted_without_its_large_properties(
    client: TestClient, sandbox: Sandbox, conversation: Conversation, database: Database
) -> None:
    report = conversation_report(conversation.id, title="A title", numbers=[1] * 999_000)
    assert send(client, sandbox, "conversations", json.dumps(report).encode()).status_code == 200
    with database.reading() as session:
        assert session.exec(select(Conversation.title)).one() == "A title"


@pytest.mark.parametrize("number", [b"1" * 401, b"[" + b",".join([b"1" * 4_000] * 7_000) + b"]"], ids=len)
def test_event_with_a_number_of_very_many_digits_is_stored_without_it_and_blocks_no_other(
    client: TestClient, sandbox: Sandbox, conversation: Conversation, database: Database, number: bytes
) -> None:
    event, later = event_report(number="N"), event_report()
    content = json.dumps([event, later]).encode().replace(b'"N"', number)
    assert send(client, sandbox, f"events/{conversation.id}", content).status_code == 200
    del event["number"]
    assert stored(database, conversation) == [event, later]

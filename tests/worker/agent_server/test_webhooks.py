"""Webhooks of agent servers: the real one, and the tiny one that the drills use."""

from typing import Any

import pytest

from deploy.demo.scripted_model import ScriptedModel
from shared.conversations.webhook_ingest import NODE_HEADER
from shared.conversations.webhook_reports import read_conversation, read_event
from tests.factories import NODE_ID
from tests.services.agent_servers import HELLO, KEY, TargetServer, body_for
from tests.services.webhooks import WebhookReceiver
from tests.waiting import eventually
from worker.sandboxes.container_spec import WEBHOOK

on_both = pytest.mark.parametrize("target", ["tiny", "real"], indirect=True)
# The real server is slow in these tests. For each change, other tests replay its recorded webhooks.
on_real_at_night = pytest.mark.parametrize(
    "target", ["tiny", pytest.param("real", marks=pytest.mark.nightly)], indirect=True
)

# More refused deliveries than attempts per batch.
REFUSED = int(str(WEBHOOK["num_retries"])) + 2
MESSAGES = 30


@pytest.fixture
def body(contract_model: ScriptedModel) -> dict[str, Any]:
    """Request for a conversation that runs until it is interrupted."""
    return body_for(contract_model, initial_message=HELLO)


class TestEvents:
    @on_both
    def test_events_arrive_once_and_in_order(
        self, target: TargetServer, receiver: WebhookReceiver, body: dict[str, Any]
    ) -> None:
        target.server.create_conversation(body)
        eventually(lambda: statuses(receiver, id_of(body)) == ["running"])
        target.server.interrupt(id_of(body))
        eventually(lambda: statuses(receiver, id_of(body)) == ["running", "paused"])
        kept = [event["id"] for event in target.list_events(id_of(body))]
        eventually(lambda: set(kept) <= set(ids(receiver, id_of(body))))
        assert [event_id for event_id in ids(receiver, id_of(body)) if event_id in kept] == kept
        assert len(set(ids(receiver, id_of(body)))) == len(ids(receiver, id_of(body)))

    @on_both
    def test_events_begin_with_full_state(
        self, target: TargetServer, receiver: WebhookReceiver, body: dict[str, Any]
    ) -> None:
        target.server.create_conversation(body)
        first = eventually(lambda: receiver.events(id_of(body)))[0]
        assert (first["key"], first["value"]["execution_status"]) == ("full_state", "idle")

    @on_both
    def test_webhooks_carry_the_key_of_the_sandbox(
        self, target: TargetServer, receiver: WebhookReceiver, body: dict[str, Any]
    ) -> None:
        target.server.create_conversation(body)
        eventually(lambda: receiver.events(id_of(body)) and receiver.described(id_of(body)))
        for delivery in receiver.deliveries(id_of(body)):
            assert delivery.headers["x-session-api-key"] == KEY
            assert delivery.headers[NODE_HEADER.lower()] == NODE_ID
            assert delivery.headers["content-type"] == "application/json"
            assert delivery.path in ("/conversations", f"/events/{id_of(body)}")

    @on_real_at_night
    def test_refused_events_are_sent_again(
        self, target: TargetServer, receiver: WebhookReceiver, body: dict[str, Any]
    ) -> None:
        receiver.refuse(id_of(body), REFUSED)
        target.server.create_conversation(body)
        eventually(lambda: "running" in statuses(receiver, id_of(body)), deadline_seconds=180)
        refused = receiver.deliveries(id_of(body), status=503)
        assert len(refused) == REFUSED
        arrived = ids(receiver, id_of(body))
        assert len(set(arrived)) == len(arrived)
        assert {event["id"] for delivery in refused for event in delivery.events} <= set(arrived)
        assert arrived[0] == refused[0].events[0]["id"]

    @on_real_at_night
    def test_events_arrive_in_batches(
        self, target: TargetServer, receiver: WebhookReceiver, contract_model: ScriptedModel
    ) -> None:
        body = body_for(contract_model)
        target.server.create_conversation(body)
        for number in range(MESSAGES):
            text = {"type": "text", "text": f"message {number}"}
            target.server.send_message(id_of(body), {"role": "user", "content": [text], "run": False})
        eventually(lambda: len(said(receiver, id_of(body))) == MESSAGES)
        assert said(receiver, id_of(body)) == [f"message {number}" for number in range(MESSAGES)]
        sizes = [len(delivery.events) for delivery in receiver.deliveries(id_of(body))]
        assert max(sizes) <= int(str(WEBHOOK["event_buffer_size"]))
        assert max(sizes) > 1


class TestDescriptions:
    @on_both
    def test_descriptions_report_each_change(
        self, target: TargetServer, receiver: WebhookReceiver, body: dict[str, Any]
    ) -> None:
        target.server.create_conversation(body)
        eventually(lambda: len(receiver.described(id_of(body))) == 1)
        eventually(lambda: "running" in statuses(receiver, id_of(body)))
        target.server.rename_conversation(id_of(body), "Another title")
        eventually(lambda: "Another title" in described(receiver, id_of(body), "title"))
        target.server.interrupt(id_of(body))
        eventually(lambda: "paused" in described(receiver, id_of(body), "execution_status"))
        target.server.delete_conversation(id_of(body))
        eventually(lambda: "deleting" in described(receiver, id_of(body), "execution_status"))

    @on_both
    def test_descriptions_have_the_shape_that_the_service_reads(
        self, target: TargetServer, receiver: WebhookReceiver, body: dict[str, Any]
    ) -> None:
        target.server.create_conversation(body)
        eventually(lambda: "running" in statuses(receiver, id_of(body)) and receiver.described(id_of(body)))
        parsed = read_conversation(receiver.described(id_of(body))[0])
        assert (parsed.id, parsed.report.llm_model) == (id_of(body), "openai/held")
        changes = [read_event(event).report for event in receiver.events(id_of(body))]
        assert [change.execution_status for change in changes if change and change.execution_status][-1] == "running"


def id_of(body: dict[str, Any]) -> str:
    return str(body["conversation_id"])


def ids(receiver: WebhookReceiver, conversation_id: str) -> list[str]:
    """Return the ids of the conversation's received events."""
    return [event["id"] for event in receiver.events(conversation_id)]


def statuses(receiver: WebhookReceiver, conversation_id: str) -> list[str]:
    """Return the conversation's received execution statuses."""
    events = receiver.events(conversation_id)
    return [event["value"] for event in events if event.get("key") == "execution_status"]


def said(receiver: WebhookReceiver, conversation_id: str) -> list[str]:
    """Return the texts of the conversation's received messages."""
    messages = [event for event in receiver.events(conversation_id) if event["kind"] == "MessageEvent"]
    return [event["llm_message"]["content"][0]["text"] for event in messages]


def described(receiver: WebhookReceiver, conversation_id: str, name: str) -> list[Any]:
    """Return a field's values in the conversation's received descriptions."""
    return [body[name] for body in receiver.described(conversation_id)]

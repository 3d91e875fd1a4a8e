"""Recorded webhooks of the real agent server about three conversations, replayed to the webhook routes."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fastapi.testclient import TestClient

from deploy.demo.scripted_model import ScriptedModel
from shared.db.database import Database
from shared.models import Sandbox
from tests.contract.recordings import recording
from tests.contract.recordings.recording import SCENARIOS, Body, Recording
from tests.factories import DOOR, ApiUser, make_conversation
from tests.services.agent_servers import FOLDER, REAL_IMAGE, TargetServer
from tests.services.engine import SANDBOX_IMAGE
from tests.services.webhooks import WebhookReceiver
from worker.agent_server.transport import open_client

Report = Callable[..., int]
Order = Callable[[Sequence[Body]], list[Body]]

# An agent server may repeat webhooks, and they may overtake each other.
ORDERS: dict[str, Order] = {
    "as they came": list,
    "backwards": lambda deliveries: list(reversed(deliveries)),
    "each twice": lambda deliveries: [one for one in deliveries for _ in range(2)],
    "all again": lambda deliveries: [*deliveries, *deliveries],
}


@pytest.fixture(params=list(SCENARIOS))
def recorded(request: pytest.FixtureRequest) -> Recording:
    return recording.read(request.param)


@pytest.fixture(params=list(ORDERS))
def order(request: pytest.FixtureRequest) -> Order:
    return ORDERS[request.param]


@pytest.fixture
def reported(
    recorded: Recording, order: Order, post: Report, database: Database, user: ApiUser, sandbox: Sandbox
) -> str:
    """The id of a conversation after all its webhooks."""
    make_conversation(database, user, sandbox, id=recorded.conversation_id)
    for delivery in order(recorded.deliveries):
        assert post(delivery["path"], delivery["body"]) == 200
    return recorded.conversation_id


def test_conversation_has_the_final_state_of_the_run(
    client: TestClient, user: ApiUser, reported: str, recorded: Recording
) -> None:
    [shown] = client.get("/api/v1/app-conversations", params={"ids": [reported]}, headers=user.headers).json()
    run = recorded.shown
    assert (shown["title"], shown["execution_status"]) == (run["title"], run["execution_status"])
    assert shown["metrics"]["accumulated_cost"] == pytest.approx(cost(run))
    assert shown["metrics"]["accumulated_cost"] > 0
    assert shown["metrics"]["accumulated_token_usage"]["prompt_tokens"] == tokens(run)
    assert shown["llm_model"] == recorded.descriptions[0]["agent"]["llm"]["model"]
    assert shown["tags"] == {"team": "blue"}
    assert recorded.descriptions[0]["workspace"]["working_dir"] == FOLDER


def test_events_are_stored_unchanged_without_duplicates(
    client: TestClient, user: ApiUser, reported: str, recorded: Recording
) -> None:
    path = f"/api/v1/conversation/{reported}/events/search"
    stored = client.get(path, params={"limit": 100}, headers=user.headers).json()["items"]
    assert sorted(stored, key=by_id) == sorted(recorded.events, key=by_id)
    assert [event["timestamp"] for event in stored] == sorted(event["timestamp"] for event in stored)
    assert set(recorded.kept) <= {event["id"] for event in stored}


def test_recording_is_of_the_tested_image(recorded: Recording) -> None:
    assert recorded.agent_server == SANDBOX_IMAGE.rpartition(":")[2]
    assert recorded.shown["execution_status"] in ("finished", "paused", "error")


@pytest.mark.parametrize("scenario", list(SCENARIOS))
def test_real_server_still_sends_the_recorded_webhooks(
    scenario: str, sandbox_url: str, contract_model: ScriptedModel, receiver: WebhookReceiver
) -> None:
    """Compare the recording with the tested image. If they differ, record again and check that the service reads it."""
    with open_client(DOOR) as client:
        target = TargetServer("real", sandbox_url, client)
        now = recording.record(scenario, REAL_IMAGE, target, contract_model, receiver)
    then = recording.read(scenario)
    assert kinds(now) == kinds(then)
    assert fields(now) == fields(then)


def cost(run: Body) -> float:
    return sum(float(usage["accumulated_cost"]) for usage in run["stats"]["usage_to_metrics"].values())


def tokens(run: Body) -> int:
    usages = run["stats"]["usage_to_metrics"].values()
    return sum(int(usage["accumulated_token_usage"]["prompt_tokens"]) for usage in usages)


def by_id(event: Body) -> str:
    return str(event["id"])


def kinds(recorded: Recording) -> set[tuple[str, Any]]:
    """The kinds of events, and the reported parts of the state."""
    return {(event["kind"], event.get("key")) for event in recorded.events}


def fields(recorded: Recording) -> dict[str, set[str]]:
    """The fields of each kind of event, and of the descriptions."""
    found: dict[str, set[str]] = {"description": set()}
    for event in recorded.events:
        found.setdefault(event["kind"], set()).update(event)
    for description in recorded.descriptions:
        found["description"] |= set(description)
    return found

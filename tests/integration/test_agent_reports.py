"""Events of agents during an outage of the API: the agent servers send them again; none is stored twice."""

import json
from typing import Any

import pytest

from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.engine import TINY_IMAGE
from tests.services.private_engine import PrivateEngine
from tests.waiting import eventually

HELLO = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
WAIT = {"wait": 60}
# More than one batch.
SAID_MEANWHILE = 25


@pytest.fixture
def service(installed: Deployment) -> Deployment:
    """The running service, with an image whose agent server reports its events."""
    installed.prepare()
    installed.add_spec(TINY_IMAGE, {"TINY_CONVERSES": "1", "TINY_REPORTS": "1"})
    installed.start_api()
    installed.start_worker()
    return installed


def test_events_reported_during_an_outage_arrive_after_it(
    service: Deployment, alice: Client, engine: PrivateEngine
) -> None:
    alice.post("/api/settings", json={"llm_model": "openai/none", "llm_api_key": "k"})
    task = alice.post("/api/v1/app-conversations", params=WAIT, json={"initial_message": HELLO}).json()
    assert task["status"] == "READY", task
    conversation_id, container = task["app_conversation_id"], f"aw-{task['sandbox_id']}"
    eventually(lambda: stored(alice, conversation_id) == stored_event_ids(engine, container, conversation_id))
    service.kill("api")
    for number in range(SAID_MEANWHILE):
        send_message(engine, container, conversation_id, f"message {number}")
    assert len(stored_event_ids(engine, container, conversation_id)) > SAID_MEANWHILE
    service.start_api()
    eventually(lambda: stored(alice, conversation_id) == stored_event_ids(engine, container, conversation_id))


def stored(alice: Client, conversation_id: str) -> list[str]:
    """The ids of the stored events, without those that the agent server reports but does not keep."""
    page: Any = alice.read(f"/api/v1/conversation/{conversation_id}/events/search", limit=100)
    return [event["id"] for event in page["items"] if event.get("key") != "full_state"]


def stored_event_ids(engine: PrivateEngine, container: str, conversation_id: str) -> list[str]:
    """The ids of the events that the agent server has."""
    path = f"/workspace/conversations/{conversation_id}/events"
    return [json.loads(line)["id"] for line in engine.docker("exec", container, "cat", path).splitlines()]


def send_message(engine: PrivateEngine, container: str, conversation_id: str, text: str) -> None:
    """Send the agent server a message from inside its sandbox: the API is the only path from outside."""
    message = {"role": "user", "content": [{"type": "text", "text": text}], "run": False}
    url = f"http://127.0.0.1:8000/api/conversations/{conversation_id}/events"
    key = engine.docker("exec", container, "cat", "/dev/shm/agent-server/session_key").strip()
    headers = ("--header", f"X-Session-API-Key: {key}", "--header", "Content-Type: application/json")
    engine.docker("exec", container, "wget", "-q", "-O", "-", *headers, "--post-data", json.dumps(message), url)

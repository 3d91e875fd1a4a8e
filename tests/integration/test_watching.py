"""Watching an agent through the sandbox path during an action: the real agent server sends nothing until its end."""

import json
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from deploy.demo.scripted_model import ScriptedModel
from tests.fixtures.model import MODEL_KEY, RESTING
from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.engine import SANDBOX_IMAGE
from tests.waiting import eventually

SEARCH = "/api/conversations/{id}/events/search"


def events_of(service: Deployment, alice: Client, path: str, conversation_id: str) -> ClientConnection:
    url = f"{service.url.replace('http', 'ws', 1)}{path}/sockets/events/{conversation_id}?resend_mode=all"
    return connect(url, additional_headers=alice.user.headers, proxy=None, max_size=None)


@pytest.mark.nightly  # `test_conversation_runs_end_to_end` checks the events for each change
def test_agent_action_is_visible_while_it_runs(service: Deployment, alice: Client, model: ScriptedModel) -> None:
    settings = {"llm_model": "openai/rester", "llm_api_key": MODEL_KEY, "llm_base_url": model.base_url}
    assert alice.post("/api/settings", json=settings).status_code == 200
    sandbox = alice.post("/api/v1/sandboxes", params={"wait": 60, "sandbox_spec_id": SANDBOX_IMAGE}).json()
    request = {"sandbox_id": sandbox["id"], "initial_message": {"content": [{"type": "text", "text": "Rest."}]}}
    started = alice.post("/api/v1/app-conversations", params={"wait": 60}, json=request).json()
    path = f"/sandbox/{sandbox['id']}"
    conversation_id = started["app_conversation_id"]

    def is_at_work() -> bool:
        events: Any = alice.read(path + SEARCH.format(id=conversation_id))["items"]
        return any(RESTING in json.dumps(event) for event in events if event["kind"] == "ActionEvent")

    eventually(is_at_work, deadline_seconds=180)
    with events_of(service, alice, path, conversation_id) as connection:
        seen = ""
        while RESTING not in seen:
            seen = str(connection.recv(timeout=30))


@pytest.mark.nightly  # the request of each start is tested with each change
def test_response_is_visible_while_the_model_streams_it(
    service: Deployment, alice: Client, model: ScriptedModel
) -> None:
    settings = {"llm_model": "openai/greeting", "llm_api_key": MODEL_KEY, "llm_base_url": model.base_url}
    assert alice.post("/api/settings", json=settings).status_code == 200
    sandbox = alice.post("/api/v1/sandboxes", params={"wait": 60, "sandbox_spec_id": SANDBOX_IMAGE}).json()
    request = {"sandbox_id": sandbox["id"]}
    started = alice.post("/api/v1/app-conversations", params={"wait": 60}, json=request).json()
    path, conversation_id = f"/sandbox/{sandbox['id']}", started["app_conversation_id"]
    with events_of(service, alice, path, conversation_id) as connection:
        message = {"role": "user", "content": [{"type": "text", "text": "Hello."}], "run": True}
        assert alice.post(f"{path}/api/conversations/{conversation_id}/events", json=message).status_code == 200
        while json.loads(connection.recv(timeout=60))["kind"] != "StreamingDeltaEvent":
            pass

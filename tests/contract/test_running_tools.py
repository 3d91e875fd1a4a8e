"""While a tool of the agent runs, the real agent server responds to no message: it takes them when the tool is over."""

from collections.abc import Iterator

import httpx
import pytest

from deploy.demo.network import bridge_address
from deploy.demo.scripted_model import Finish, RunCommand, Script, ScriptedModel
from tests.factories import DOOR
from tests.services.agent_servers import HELLO, KEY, TargetServer, body_for
from tests.waiting import eventually
from worker.agent_server.transport import open_client

FLAG = "/tmp/the-tool-may-end"
MESSAGE = {"role": "user", "content": [{"type": "text", "text": "one"}], "run": True}


@pytest.fixture
def target(sandbox_url: str) -> Iterator[TargetServer]:
    with open_client(DOOR) as client:
        target = TargetServer("real", sandbox_url, client)
        yield target
        target.server.run_command(f"touch {FLAG}")
        target.forget_conversations()


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    """A model that runs a command until `FLAG` exists."""
    script = Script([RunCommand(f"until [ -e {FLAG} ]; do sleep 0.1; done"), Finish("done")], title="A title")
    with ScriptedModel({"tool": script}, host=bridge_address()) as model:
        yield model


def test_message_is_accepted_after_the_tool_even_if_its_sender_does_not_wait(
    target: TargetServer, model: ScriptedModel
) -> None:
    body = body_for(model, llm_model="openai/tool", initial_message=HELLO)
    target.server.create_conversation(body)
    path = f"/conversations/{body['conversation_id']}"

    def count(kind: str) -> int:
        return [event["kind"] for event in target.list_events(body["conversation_id"])].count(kind)

    def said() -> list[str]:
        return [each.llm_message.content[0]["text"] for each in target.server.list_messages(body["conversation_id"])]

    eventually(lambda: count("ActionEvent") == 1, deadline_seconds=60)
    for name, sent in (("events", MESSAGE), ("events", MESSAGE), ("secrets", {"secrets": {}})):
        with pytest.raises(httpx.ReadTimeout), httpx.Client(timeout=2) as client:
            client.post(f"{target.url}/api{path}/{name}", headers={"X-Session-API-Key": KEY}, json=sent)
    assert (said(), target.request("GET", path).json()["execution_status"]) == (["Hello"], "running")
    target.server.run_command(f"touch {FLAG}")
    target.server.await_messages(body["conversation_id"])
    assert said() == ["one", "one", "Hello"]

"""Recorded webhooks of the real agent server: how they are made and stored.

The bodies are stored as they were sent, without the agent server's own prompts, which this project has no right to
copy, and without the names of the recording machine.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deploy.demo.scripted_model import ScriptedModel
from tests.services.agent_servers import HELLO, TargetServer, body_for
from tests.services.webhooks import WebhookReceiver
from tests.waiting import eventually
from worker.agent_server.client import AgentServer

FOLDER = Path(__file__).parent
LEFT_OUT = "(left out)"
MODEL_URL = "http://model.example/v1"
# Prices in USD per token, so that a run has a cost.
PRICES = {"input_cost_per_token": 0.001, "output_cost_per_token": 0.002}

Body = dict[str, Any]
Run = Callable[[AgentServer, str], object]


@dataclass(frozen=True)
class Recording:
    """One conversation's webhooks in the order of arrival, and its final state at the agent server.

    Args:
        agent_server: the version of the agent server.
        conversation_id: 32 hexadecimal digits.
        shown: the fields of `GET /api/conversations/{id}` that the service stores: title, execution_status and stats.
        kept: the ids of the events that the agent server keeps.
        deliveries: the webhooks, each with `path` (below the base URL) and `body`.
    """

    agent_server: str
    conversation_id: str
    shown: Body
    kept: list[str]
    deliveries: list[Body]

    @property
    def events(self) -> list[Body]:
        """All reported events."""
        return [
            event for delivery in self.deliveries if isinstance(delivery["body"], list) for event in delivery["body"]
        ]

    @property
    def descriptions(self) -> list[Body]:
        """All reported descriptions of the conversation."""
        return [delivery["body"] for delivery in self.deliveries if isinstance(delivery["body"], dict)]


def read(scenario: str) -> Recording:
    """The recording in the repository."""
    return Recording(**json.loads((FOLDER / f"{scenario}.json").read_text()))


def write(scenario: str, recording: Recording) -> None:
    """Store a recording in the repository."""
    text = json.dumps(asdict(recording), indent=1, ensure_ascii=False)
    (FOLDER / f"{scenario}.json").write_text(text + "\n")


def record(
    scenario: str, version: str, target: TargetServer, model: ScriptedModel, receiver: WebhookReceiver
) -> Recording:
    """Run a conversation through that scenario, and record its webhooks."""
    (llm, run), server = SCENARIOS[scenario], target.server
    body = body_for(model, llm_model=llm, initial_message=HELLO, agent_settings={"llm": PRICES}, tags={"team": "blue"})
    conversation_id = body["conversation_id"]
    server.create_conversation(body)
    run(server, conversation_id)
    known = server.get_conversation(conversation_id)
    assert known
    kept = [event["id"] for event in target.list_events(conversation_id)]
    # A deletion cancels the request that sends events at that moment, and these events are lost (1.58.2).
    _await_none(lambda: _missing_events(receiver, conversation_id, kept))
    server.delete_conversation(conversation_id)
    _await_none(lambda: _missing_statuses(receiver, conversation_id))
    deliveries = [{"path": one.path, "body": one.body} for one in receiver.deliveries(conversation_id)]
    shown = {name: known[name] for name in ("title", "execution_status", "stats")}
    return Recording(version, conversation_id, shown, kept, _cleaned(deliveries, model.base_url))


def _await_none(missing: Callable[[], list[str]]) -> None:
    """Wait until no webhook is missing.

    Raises:
        AssertionError: some are; the message names them.
    """
    try:
        eventually(lambda: not missing())
    except AssertionError:
        raise AssertionError(f"not received: {missing()}") from None


def _missing_events(receiver: WebhookReceiver, conversation_id: str, kept: list[str]) -> list[str]:
    arrived = {event["id"] for event in receiver.events(conversation_id)}
    return [f"event {event}" for event in kept if event not in arrived]


def _missing_statuses(receiver: WebhookReceiver, conversation_id: str) -> list[str]:
    """The description with `deleting` is the last webhook."""
    return sorted({"deleting"} - {described["execution_status"] for described in receiver.described(conversation_id)})


def _finish(server: AgentServer, conversation_id: str) -> None:
    """Wait until the agent has run a command and finished, then rename the conversation."""
    _await(server, conversation_id, "finished")
    eventually(lambda: (server.get_conversation(conversation_id) or {})["title"])
    server.rename_conversation(conversation_id, "Greetings")


def _interrupt(server: AgentServer, conversation_id: str) -> None:
    """Interrupt the agent while it waits for its model."""
    _await(server, conversation_id, "running")
    server.interrupt(conversation_id)
    _await(server, conversation_id, "paused")


def _fail(server: AgentServer, conversation_id: str) -> None:
    """Wait for the error of a model that rejects requests."""
    _await(server, conversation_id, "error")


def _await(server: AgentServer, conversation_id: str, status: str) -> None:
    eventually(lambda: (server.get_conversation(conversation_id) or {})["execution_status"] == status)


# The model and the actions of each scenario.
SCENARIOS: Mapping[str, tuple[str, Run]] = {
    "finished": ("openai/working", _finish),
    "interrupted": ("openai/held", _interrupt),
    "failed": ("openai/failing", _fail),
}


def _cleaned(deliveries: list[Body], model_url: str) -> list[Body]:
    text = json.dumps(deliveries).replace(model_url, MODEL_URL)
    cleaned: list[Body] = json.loads(text, object_hook=_without_prompts)
    return cleaned


def _without_prompts(value: Body) -> Body:
    """The object without the agent server's prompts and without the name of its container."""
    if value.get("kind") == "SystemPromptEvent":
        tools = [tool | {"description": LEFT_OUT} for tool in value["tools"]]
        prompts = {
            name: value[name] | {"text": LEFT_OUT} for name in ("system_prompt", "dynamic_context") if value[name]
        }
        return value | prompts | {"tools": tools}
    return value | ({"hostname": LEFT_OUT} if value.get("hostname") else {})

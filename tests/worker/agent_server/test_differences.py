"""Intended differences of the stand-ins from the real agent server. Otherwise the contract holds for all three.

Each entry is checked on the stand-in and on the real server. An entry that no longer differs fails and must be removed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from deploy.demo.scripted_model import ScriptedModel
from shared.ids import new_id
from tests.fixtures.agent_servers import opened
from tests.services.agent_servers import HELLO, TargetServer, body_for
from tests.services.webhooks import WebhookReceiver
from tests.waiting import eventually


@dataclass(frozen=True)
class Surroundings:
    """Services that a server under test can reach."""

    model: ScriptedModel
    receiver: WebhookReceiver


Probe = Callable[[TargetServer, Surroundings], Any]
NO_ROUTE = 0


@dataclass(frozen=True)
class Difference:
    """One intended difference.

    Args:
        route: the route with the difference.
        what: the stand-ins' behavior.
        why: the reason why it is acceptable.
        probe: function that reads a server's behavior.
        real: result of the probe with the real server.
        others: results of the probe with the stand-ins that differ, by kind: `fake` or `tiny`.
    """

    route: str
    what: str
    why: str
    probe: Probe
    real: Any
    others: Mapping[str, Any]


def _finished(target: TargetServer, surroundings: Surroundings) -> Any:
    return _after_a_run(target, surroundings, lambda known: known["execution_status"] == "finished")["execution_status"]


def _titled(target: TargetServer, surroundings: Surroundings) -> Any:
    return _after_a_run(target, surroundings, lambda known: known["title"])["title"]


def _spent(target: TargetServer, surroundings: Surroundings) -> int:
    # The real server lists a usage before it counts the tokens of its first response.
    return _usages_with_tokens(_after_a_run(target, surroundings, _usages_with_tokens))


def _usages_with_tokens(known: dict[str, Any]) -> int:
    usages: list[Any] = list(known["stats"]["usage_to_metrics"].values())
    return sum(usage["accumulated_token_usage"]["prompt_tokens"] > 0 for usage in usages)


def _kinds(target: TargetServer, surroundings: Surroundings) -> set[str]:
    body = body_for(surroundings.model, llm_model="openai/quick", initial_message=HELLO)
    target.server.create_conversation(body)

    def kinds() -> set[str]:
        return {event["kind"] for event in target.list_events(body["conversation_id"])}

    if target.kind == "real":
        eventually(lambda: "ObservationEvent" in kinds())
    return kinds() & {"MessageEvent", "SystemPromptEvent", "ActionEvent", "ObservationEvent"}


def _output(target: TargetServer, _around: Surroundings) -> str:
    return target.server.run_command("echo here").stdout


def _reported(target: TargetServer, surroundings: Surroundings) -> int:
    body = body_for(surroundings.model, initial_message=HELLO)
    target.server.create_conversation(body)
    if target.kind == "real":
        eventually(lambda: surroundings.receiver.described(body["conversation_id"]))
    return len(surroundings.receiver.described(body["conversation_id"]))


def _pages(target: TargetServer, surroundings: Surroundings) -> int:
    """Return the number of pages, up to two, for two conversations and a page size of one."""
    bodies = [body_for(surroundings.model, initial_message=HELLO) for _ in range(2)]
    for body in bodies:
        target.server.create_conversation(body)
    eventually(lambda: all(_known(target, body)["execution_status"] == "running" for body in bodies))
    page = target.request("GET", "/conversations/search", params={"status": "running", "limit": 1}).json()
    return 2 if page["next_page_id"] else 1


def _wait(target: TargetServer, surroundings: Surroundings) -> int:
    body = body_for(surroundings.model)
    target.server.create_conversation(body)
    return _status(target, "POST", f"/conversations/{body['conversation_id']}/secrets", json={"secrets": {}})


def _skills(target: TargetServer, _around: Surroundings) -> int:
    return _status(target, "POST", "/skills", json={"project_dir": "/tmp", "load_public": False})


def _profiles(target: TargetServer, _around: Surroundings) -> int:
    name = new_id()
    target.server.keep_profile(name, {"model": "openai/one"})
    return _status(target, "GET", f"/profiles/{name}")


def _status(target: TargetServer, method: str, path: str, **content: Any) -> int:
    """Return the response's status; the fake raises AssertionError for an unknown route."""
    try:
        return target.request(method, path, **content).status_code
    except AssertionError:
        return NO_ROUTE


NO_AGENT = "no test without a model needs an agent; tests with one call the real server"
# The tiny image responds to switch_… with a success, and changes nothing.
API_ONLY = "the routes that only the API uses (file/download, skills, hooks, git/…) are missing"
PROFILES = "a profile can't be read again"
DIFFERENCES = [
    Difference(
        "POST …/run",
        "no run ends by itself",
        NO_AGENT,
        _finished,
        "finished",
        {"fake": "running", "tiny": "running"},
    ),
    Difference("GET …", "no title is made, but TINY_TITLE", NO_AGENT, _titled, "A title", {"fake": None, "tiny": None}),
    Difference("GET …", "nothing is spent", NO_AGENT, _spent, 1, {"fake": 0, "tiny": 0}),
    Difference(
        "GET …/events/search",
        "an agent's events are missing",
        NO_AGENT,
        _kinds,
        {"MessageEvent", "SystemPromptEvent", "ActionEvent", "ObservationEvent"},
        {"fake": {"MessageEvent"}, "tiny": {"MessageEvent"}},
    ),
    Difference(
        "POST /bash/execute_bash_command",
        "commands are not run: a test sets their results",
        "the worker's scripts are tested with a real shell and a real git (test_workspace_setup)",
        _output,
        "here\n",
        {"fake": ""},
    ),
    Difference(
        "webhooks",
        "nothing is reported",
        "its tests have no API; the routes get recorded reports (tests/contract)",
        _reported,
        1,
        {"fake": 0},
    ),
    Difference(
        "GET /conversations/search",
        "all that run are on one page",
        "the service reads the first page only, and no drill has a hundred conversations in a sandbox",
        _pages,
        2,
        {"tiny": 1},
    ),
    Difference(
        "POST …/secrets",
        "the route is missing",
        "no tool runs there, so that no message waits; a worker sends the message again after a 404",
        _wait,
        200,
        {"tiny": 404},
    ),
    Difference(
        "POST /skills",
        API_ONLY,
        "the API's tests have ScriptedAgent, and tests/contract/test_real_agent_server.py the real one",
        _skills,
        200,
        {"fake": NO_ROUTE, "tiny": 404},
    ),
    Difference(
        "GET /profiles/{name}", PROFILES, "only agents read them", _profiles, 200, {"fake": NO_ROUTE, "tiny": 404}
    ),
]
CASES = [(entry, kind) for entry in DIFFERENCES for kind in entry.others]


@pytest.fixture
def surroundings(contract_model: ScriptedModel, receiver: WebhookReceiver) -> Surroundings:
    return Surroundings(contract_model, receiver)


@pytest.mark.parametrize(("entry", "kind"), CASES, ids=[f"{kind}-{entry.what}" for entry, kind in CASES])
def test_fake_server_differs_as_listed(
    request: pytest.FixtureRequest, surroundings: Surroundings, entry: Difference, kind: str
) -> None:
    assert entry.others[kind] != entry.real, "it no longer differs: remove the entry"
    with opened(request, kind) as target:
        assert entry.probe(target, surroundings) == entry.others[kind]


@pytest.mark.parametrize("entry", DIFFERENCES, ids=[f"real-{entry.what}" for entry in DIFFERENCES])
def test_real_server_behaves_as_listed(
    request: pytest.FixtureRequest, surroundings: Surroundings, entry: Difference
) -> None:
    with opened(request, "real") as target:
        assert entry.probe(target, surroundings) == entry.real


def _after_a_run(target: TargetServer, surroundings: Surroundings, is_so: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the conversation when `is_so` holds; a stand-in does everything immediately, or never."""
    body = body_for(surroundings.model, llm_model="openai/quick", initial_message=HELLO)
    target.server.create_conversation(body)
    if target.kind == "real":
        eventually(lambda: is_so(_known(target, body)))
    return _known(target, body)


def _known(target: TargetServer, body: dict[str, Any]) -> dict[str, Any]:
    known = target.server.get_conversation(body["conversation_id"])
    assert known
    return known

"""The scripted model over HTTP, as an agent's client uses it."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from deploy.demo.scripted_model import (
    CallTool,
    Fail,
    Finish,
    Gate,
    Hold,
    Response,
    RunCommand,
    Say,
    Script,
    ScriptedModel,
)

KEY = "model-key"
PLAN: list[Response] = [
    RunCommand("date", "ask the time"),
    CallTool("think", {"thought": "hm"}, "Let me think"),
    Finish("Done."),
]
TOOLS = [{"type": "function", "function": {"name": "terminal"}}]
USER: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": "What time is it?"}]}
ANSWER: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": []}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "call_1", "content": "noon"}


@pytest.fixture
def gate() -> Gate:
    return Gate(deadline=30)


@pytest.fixture
def model(gate: Gate) -> Iterator[ScriptedModel]:
    scripts: dict[str, Script | Sequence[Response]] = {
        "openai/demo": PLAN,
        "openai/other": Script([Say("Hello")], title="Another title"),
        "broken": [Fail(429, "slow down")],
        "held": [Hold(gate, Finish("at last"))],
        "forgotten": [Hold(Gate(deadline=0.05), Finish("never"))],
    }
    with ScriptedModel(scripts, api_key=KEY) as running:
        yield running


@pytest.fixture
def client(model: ScriptedModel) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=model.url, headers=headers, timeout=30, trust_env=False) as http:
        yield http


def ask(client: httpx.Client, *messages: dict[str, Any], model: str = "demo", **more: Any) -> httpx.Response:
    body = {"model": model, "messages": list(messages), "tools": TOOLS, **more}
    return client.post("/v1/chat/completions", json=body)


def message_of(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    message: dict[str, Any] = response.json()["choices"][0]["message"]
    return message


def called(message: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    function = message["tool_calls"][0]["function"]
    return function["name"], json.loads(function["arguments"])


def test_command_is_a_terminal_call_with_the_required_arguments(client: httpx.Client) -> None:
    name, arguments = called(message_of(ask(client, USER)))
    assert name == "terminal"
    assert arguments == {"command": "date", "summary": "ask the time", "security_risk": "LOW"}


def test_response_depends_on_the_messages_since_the_user_s_last_one(client: httpx.Client) -> None:
    first = [USER, ANSWER, RESULT]
    assert called(message_of(ask(client, *first))) == ("think", {"thought": "hm"})
    assert called(message_of(ask(client, *first, ANSWER, RESULT))) == ("finish", {"message": "Done."})
    assert called(message_of(ask(client, *first, ANSWER, RESULT, USER)))[0] == "terminal"


def test_call_may_have_text(client: httpx.Client) -> None:
    assert message_of(ask(client, USER, ANSWER, RESULT))["content"] == "Let me think"


def test_script_finishes_after_its_last_response(client: httpx.Client) -> None:
    assert called(message_of(ask(client, USER, ANSWER, ANSWER, ANSWER)))[0] == "finish"


def test_retry_gets_the_same_answer_with_the_same_ids(client: httpx.Client) -> None:
    once, again = (message_of(ask(client, USER)) for _ in range(2))
    assert once == again


def test_different_requests_get_different_call_ids(client: httpx.Client) -> None:
    once, later = message_of(ask(client, USER)), message_of(ask(client, USER, ANSWER, RESULT))
    assert once["tool_calls"][0]["id"] != later["tool_calls"][0]["id"]


def test_concurrent_conversations_are_independent(client: httpx.Client) -> None:
    conversations = [[USER] + [ANSWER, RESULT] * (turn % 3) for turn in range(30)]
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda messages: called(message_of(ask(client, *messages)))[0], conversations))
    assert answers == ["terminal", "think", "finish"] * 10


def test_each_model_has_its_own_script(client: httpx.Client) -> None:
    reply = ask(client, USER, model="openai/other").json()["choices"][0]
    assert reply["message"]["content"] == "Hello"
    assert "tool_calls" not in reply["message"]
    assert reply["finish_reason"] == "stop"


def test_stream_has_the_same_call_in_chunks(client: httpx.Client) -> None:
    whole = message_of(ask(client, USER))["tool_calls"][0]
    streamed = ask(client, USER, stream=True, stream_options={"include_usage": True})
    pieces = parse_stream(streamed)
    deltas = [choice["delta"] for piece in pieces for choice in piece["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert [calls[0]["id"], calls[0]["function"]["name"]] == [whole["id"], "terminal"]
    assert "".join(call["function"]["arguments"] for call in calls) == whole["function"]["arguments"]
    assert pieces[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert pieces[-1]["usage"]["total_tokens"] > 0


def test_stream_has_the_same_text_in_chunks(client: httpx.Client) -> None:
    pieces = parse_stream(ask(client, USER, model="other", stream=True))
    deltas = [choice["delta"] for piece in pieces for choice in piece["choices"]]
    assert "".join(delta.get("content", "") for delta in deltas) == "Hello"
    assert all("usage" not in piece for piece in pieces)


def parse_stream(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"] == "text/event-stream"
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_request_without_tools_gets_the_script_s_title(client: httpx.Client) -> None:
    assert message_of(ask(client, USER, model="other", tools=None))["content"] == "Another title"


def test_script_without_a_title_uses_the_user_s_first_words(client: httpx.Client) -> None:
    prompt = "Generate a title for this:\n\nPlease write a file with one line and stop."
    message = message_of(ask(client, {"role": "user", "content": prompt}, tools=None))
    assert message["content"] == "Please write a file with one"
    assert message_of(ask(client, USER, tools=[]))["content"] == "What time is it?"


@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY[:-1]}])
def test_wrong_key_is_rejected_except_at_the_health_check(model: ScriptedModel, header: dict[str, str]) -> None:
    with httpx.Client(base_url=model.url, headers=header, trust_env=False) as stranger:
        assert ask(stranger, USER).status_code == 401
        assert stranger.get("/v1/models").status_code == 401
        assert stranger.get("/health").status_code == 200
    assert model.counts == {}


def test_model_without_a_key_accepts_every_request() -> None:
    with ScriptedModel({"demo": PLAN}) as model:
        reply = httpx.post(f"{model.base_url}/chat/completions", json={"model": "demo"}, trust_env=False)
    assert reply.status_code == 200


def test_models_are_listed(client: httpx.Client) -> None:
    names = {entry["id"] for entry in client.get("/v1/models").json()["data"]}
    assert {"demo", "other"} <= names


def test_unknown_model_or_path_is_404(client: httpx.Client) -> None:
    assert ask(client, USER, model="unknown").status_code == 404
    assert client.post("/v1/elsewhere", json={}).status_code == 404
    assert client.get("/elsewhere").status_code == 404


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff"])
def test_body_that_is_not_a_json_object_is_400(client: httpx.Client, body: bytes) -> None:
    assert client.post("/v1/chat/completions", content=body).status_code == 400


def test_scripted_failure_is_repeated(client: httpx.Client) -> None:
    for _ in range(2):
        reply = ask(client, USER, model="broken")
        assert (reply.status_code, reply.json()["error"]["message"]) == (429, "slow down")


def test_gate_blocks_the_agent_until_it_is_opened(client: httpx.Client, model: ScriptedModel, gate: Gate) -> None:
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(ask, client, USER, model="held")
        assert gate.reached.wait(30)
        assert not held.done()
        assert message_of(ask(client, USER))["tool_calls"]
        gate.open()
        assert called(message_of(held.result(30))) == ("finish", {"message": "at last"})
    assert model.counts["held"] == 1


def test_gate_that_stays_closed_ends_in_an_error(client: httpx.Client) -> None:
    assert ask(client, USER, model="forgotten").status_code == 503


def test_stopping_opens_gates_and_frees_the_port(gate: Gate) -> None:
    model = ScriptedModel({"held": [Hold(gate, Finish("at last"))]}).start()
    with httpx.Client(base_url=model.url, timeout=30, trust_env=False) as http, ThreadPoolExecutor(1) as pool:
        held = pool.submit(ask, http, USER, model="held")
        assert gate.reached.wait(30)
        model.stop()
        assert held.result(30).status_code == 200
    port = int(model.url.rpartition(":")[2])
    with ScriptedModel({}, port=port) as successor:
        assert httpx.get(f"{successor.url}/health", trust_env=False).status_code == 200


def test_requests_are_counted_and_recorded(client: httpx.Client, model: ScriptedModel) -> None:
    assert model.last_headers == {}
    ask(client, USER)
    ask(client, USER, model="openai/demo")
    ask(client, USER, model="other")
    assert model.counts == {"demo": 2, "other": 1}
    assert model.last_headers["authorization"] == f"Bearer {KEY}"
    assert [seen.model for seen in model.seen] == ["demo", "demo", "other"]
    assert model.seen[0].body["messages"] == [USER]

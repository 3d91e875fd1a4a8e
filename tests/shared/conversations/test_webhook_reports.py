"""Reports of agent servers: the stored form of their events."""

from typing import Any

import pytest

from shared.conversations.webhook_reports import MAX_EVENT_BYTES, has_running_tool, read_event, waits_since
from shared.json_documents import count_bytes
from shared.users.mcp_config import MASK
from tests.api.agent_reports import event_report, update_report

SERVERS: dict[str, Any] = {
    "docs": {"url": "https://user:secret@mcp.example/?api_key=secret&page=2", "headers": {"X": MASK}},
    "files": {"command": "files", "args": ["/"]},
}


def _nested(levels: int) -> Any:
    document: Any = 1
    for _ in range(levels):
        document = [document]
    return document


@pytest.mark.parametrize("key", ["full_state", "agent"])
def test_event_with_an_agent_is_stored_without_the_credentials_in_its_urls(key: str) -> None:
    llm = {"model": "m", "base_url": "https://user:secret@llm.example/v1", "ollama_base_url": 3}
    critic = {"kind": "APIBasedCritic", "server_url": "https://user:secret@critic.example", "mode": "all_actions"}
    sent = {"mcp_config": SERVERS, "llm": llm, "condenser": {"kind": "C", "llm": llm}, "critic": critic}
    received = update_report(key, {"agent": sent, "title": "A title"} if key == "full_state" else sent)
    stored = read_event(received).body
    agent = stored["value"]["agent"] if key == "full_state" else stored["value"]
    masked = f"https://{MASK}@mcp.example/?api_key={MASK}&page=2"
    assert agent["mcp_config"] == {**SERVERS, "docs": {**SERVERS["docs"], "url": masked}}
    assert agent["llm"] == agent["condenser"]["llm"] == llm | {"base_url": f"https://{MASK}@llm.example/v1"}
    assert agent["condenser"]["kind"] == "C"
    assert agent["critic"] == critic | {"server_url": f"https://{MASK}@critic.example"}
    assert {**stored, "value": None} == {**received, "value": None}
    assert "secret" in str(received)  # the received document is unchanged


def test_event_that_is_too_large_keeps_its_shape_with_shortened_texts() -> None:
    parts = [{"type": "text", "text": "a" * 900_000}, {"type": "image", "image_urls": ["data:," + "b" * 3_000_000]}]
    received = event_report(llm_message={"role": "user", "content": [*parts, {"type": "text", "text": "short"}]})
    stored = read_event(received).body
    assert count_bytes(stored) <= MAX_EVENT_BYTES
    assert {**stored, "llm_message": None} == {**received, "llm_message": None}
    first, second, third = stored["llm_message"]["content"]
    assert first["text"].startswith("aaa")
    assert first["text"].endswith("characters were left out)")
    assert second["image_urls"][0].startswith("data:,bbb")
    assert third == {"type": "text", "text": "short"}


def test_event_that_is_not_too_large_is_stored_unchanged() -> None:
    received = event_report(text="a" * (MAX_EVENT_BYTES - 1000))
    assert read_event(received).body == received


@pytest.mark.parametrize("bulk", [[0] * 600_000, {f"{number:0100}": 1 for number in range(20_000)}, ["ü" * 90] * 5000])
def test_event_that_is_too_large_without_long_texts_is_stored_with_its_essential_fields(bulk: Any) -> None:
    received = event_report(bulk=bulk)
    report = read_event(received)
    assert report.body == {name: received[name] for name in ("id", "kind", "timestamp", "source")}
    assert report.id == received["id"]


@pytest.mark.parametrize("bulk", [[0] * 600_000, _nested(150)])
def test_result_that_is_not_stored_whole_still_ends_its_call(bulk: Any) -> None:
    """Otherwise its agent would be shown as running a tool until its next call."""
    call = read_event(event_report("ActionEvent", id="call", tool_call_id="c"))
    result = read_event(event_report("ObservationEvent", after=1, action_id="call", tool_call_id="c", bulk=bulk))
    newest = [result.as_row("conversation"), call.as_row("conversation")]
    assert not has_running_tool(newest)
    assert waits_since(newest) == result.timestamp


@pytest.mark.parametrize("action_id", [["call"] * 200_000, "c" * 1_000, None])
def test_unusable_name_of_a_call_is_left_out_of_a_large_event(action_id: Any) -> None:
    report = read_event(event_report("ObservationEvent", action_id=action_id, bulk=[0] * 600_000))
    assert "action_id" not in report.body


def test_report_of_a_large_event_is_read() -> None:
    received = update_report("full_state", {"title": "A title", "bulk": [0] * 600_000})
    report = read_event(received).report
    assert report is not None
    assert report.title == "A title"


@pytest.mark.parametrize(
    "value",
    [None, [], {"agent": {"mcp_config": None, "critic": {}}}, {"agent": {"mcp_config": {"a": 1}, "llm": 1}}],
)
def test_event_with_a_state_of_another_shape_is_stored_unchanged(value: Any) -> None:
    received = update_report("full_state", value)
    assert read_event(received).body == received


def test_time_with_a_million_decimal_places_is_refused() -> None:
    """If it were cut like any other long text, it would not be a valid time."""
    with pytest.raises(ValueError, match="timestamp"):
        read_event(event_report(timestamp="2026-01-01T00:00:00." + "0" * MAX_EVENT_BYTES))

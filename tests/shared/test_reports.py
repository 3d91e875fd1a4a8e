"""Reports of agent servers: what is stored of their events."""

from typing import Any

import pytest

from shared.mcp_servers import MASK
from shared.reports import read_event
from tests.api.agent_reports import told_update

SERVERS: dict[str, Any] = {
    "docs": {"url": "https://user:secret@mcp.example/?api_key=secret&page=2", "headers": {"X": MASK}},
    "files": {"command": "files", "args": ["/"]},
}


@pytest.mark.parametrize(
    ("key", "value"),
    [("full_state", {"agent": {"mcp_config": SERVERS}, "title": "A title"}), ("agent", {"mcp_config": SERVERS})],
)
def test_event_with_mcp_servers_is_stored_without_the_credentials_in_their_urls(key: str, value: Any) -> None:
    told = told_update(key, value)
    stored = read_event(told).body
    agent = stored["value"]["agent"] if key == "full_state" else stored["value"]
    masked = f"https://{MASK}@mcp.example/?api_key={MASK}&page=2"
    assert agent["mcp_config"] == {**SERVERS, "docs": {**SERVERS["docs"], "url": masked}}
    assert {**stored, "value": None} == {**told, "value": None}
    assert "secret" in str(told)  # what came is left as it was


@pytest.mark.parametrize("value", [None, [], {"agent": {"mcp_config": None}}, {"agent": {"mcp_config": {"a": 1}}}])
def test_event_with_a_state_of_another_shape_is_stored_as_it_came(value: Any) -> None:
    told = told_update("full_state", value)
    assert read_event(told).body == told

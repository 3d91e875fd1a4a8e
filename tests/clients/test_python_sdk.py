"""`OpenHandsCloudWorkspace` of the Python SDK, unchanged, as its users run it."""

from typing import Any

import pytest

from tests.clients import guides
from tests.clients.site import MODEL_KEY, Site
from tests.services.directories import REPOSITORY
from tests.waiting import eventually

CLIENT = "Python SDK"
MCP = {
    "sse_servers": [{"url": "http://mcp.example.com/sse", "api_key": "k"}],
    "shttp_servers": [{"url": "http://mcp.example.com/mcp", "timeout": 7}],
    "stdio_servers": [{"name": "files", "command": "true", "args": ["-y"], "env": {"A": "b"}}],
}
QUICK = {"model": "openai/quick", "api_key": "sk-quick", "base_url": "http://quick.example.com"}


@pytest.fixture(scope="module")
def told(site: Site) -> Any:
    """What the program tells, which does all of it with one sandbox."""
    site.alice.post("/api/v1/settings/profiles/quick", json={"llm": QUICK}).raise_for_status()
    site.alice.post("/api/settings", json={"mcp_config": MCP}).raise_for_status()
    report = site.report("python", "-", program="sdk.py")
    site.alice.post("/api/settings", json={"mcp_config": None}).raise_for_status()
    return report


def test_commands_and_files(told: Any) -> None:
    assert told["command"] == [3, "out\n", "err\n"]
    assert told["files"] == [True, True, list(b"\x00\xff\n")]


def test_settings(site: Site, told: Any) -> None:
    settings = told["settings"]
    assert settings["llm"] == ["openai/greeter", MODEL_KEY, site.model.base_url, 0.5]
    assert settings["profile"] == ["openai/quick", "sk-quick", "http://quick.example.com", "profile:quick"]
    assert settings["secrets"] == {"DEPLOY_KEY": "for deploys"}


def test_mcp_servers(told: Any) -> None:
    servers = told["settings"]["mcp"]
    assert set(servers) == {"sse_0", "shttp_0", "files"}
    assert (servers["sse_0"]["url"], servers["sse_0"]["transport"]) == ("http://mcp.example.com/sse", "sse")
    assert (servers["shttp_0"]["url"], servers["shttp_0"]["timeout"]) == ("http://mcp.example.com/mcp", 7)
    assert (servers["files"]["command"], servers["files"]["args"]) == ("true", ["-y"])


def test_a_whole_conversation(told: Any) -> None:
    _, status, kinds, greeting = told["conversation"]
    assert (status, greeting) == ("finished", [0, "hello, 23 letters\n", ""])
    assert {"SystemPromptEvent", "MessageEvent", "ActionEvent", "ObservationEvent"} <= set(kinds)


def test_what_it_does_is_listed_by_the_service(site: Site, told: Any) -> None:
    conversation_id = told["conversation"][0].replace("-", "")

    def listed() -> Any:
        return site.alice.read("/api/v1/app-conversations", ids=conversation_id)[0]

    assert eventually(listed)["sandbox_id"] == told["sandbox_id"]
    assert site.alice.read(f"/api/v1/conversation/{conversation_id}/events/count") > 3


def test_resume_and_cleanup(told: Any) -> None:
    assert told["resumed"] == [0, "hello, 23 letters\n", ""]
    assert told["afterwards"] == [None]


def test_guide(site: Site) -> None:
    said = site.run("python", "-", program=guides.example(CLIENT, "python", site.url))
    assert "Linux" in said
    assert "finished" in said


def test_guide_names_the_version_that_is_tested() -> None:
    locked = ("tests/images/clients/sdk.in", "deploy/image/sandbox/requirements.in")
    tested = "".join((REPOSITORY / path).read_text() for path in locked)
    assert [name for name in guides.installed(CLIENT).split() if f"\n{name}\n" not in tested] == []

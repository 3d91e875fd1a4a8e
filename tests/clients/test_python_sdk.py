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
def results(site: Site) -> Any:
    """The results of the program, which uses one sandbox for everything."""
    site.alice.post("/api/v1/settings/profiles/quick", json={"llm": QUICK}).raise_for_status()
    site.alice.post("/api/settings", json={"mcp_config": MCP}).raise_for_status()
    report = site.report("python", "-", program="sdk.py")
    site.alice.post("/api/settings", json={"mcp_config": None}).raise_for_status()
    return report


def test_sdk_runs_commands_and_transfers_files(results: Any) -> None:
    assert results["command"] == [3, "out\n", "err\n"]
    assert results["files"] == [True, True, list(b"\x00\xff\n")]


def test_sdk_reads_the_settings(site: Site, results: Any) -> None:
    settings = results["settings"]
    assert settings["llm"] == ["openai/greeter", MODEL_KEY, site.model.base_url, 0.5]
    assert settings["profile"] == ["openai/quick", "sk-quick", "http://quick.example.com", "profile:quick"]
    assert settings["secrets"] == {"DEPLOY_KEY": "for deploys"}


def test_sdk_reads_the_mcp_servers(results: Any) -> None:
    servers = results["settings"]["mcp"]
    assert set(servers) == {"sse_0", "shttp_0", "files"}
    assert (servers["sse_0"]["url"], servers["sse_0"]["transport"]) == ("http://mcp.example.com/sse", "sse")
    assert (servers["shttp_0"]["url"], servers["shttp_0"]["timeout"]) == ("http://mcp.example.com/mcp", 7)
    assert (servers["files"]["command"], servers["files"]["args"]) == ("true", ["-y"])


def test_conversation_finishes(results: Any) -> None:
    _, status, kinds, greeting = results["conversation"]
    assert (status, greeting) == ("finished", [0, "hello, 23 letters\n", ""])
    assert {"SystemPromptEvent", "MessageEvent", "ActionEvent", "ObservationEvent"} <= set(kinds)


def test_conversation_is_listed_by_the_service(site: Site, results: Any) -> None:
    conversation_id = results["conversation"][0].replace("-", "")

    def listed() -> Any:
        return site.alice.read("/api/v1/app-conversations", ids=conversation_id)[0]

    assert eventually(listed)["sandbox_id"] == results["sandbox_id"]
    assert site.alice.read(f"/api/v1/conversation/{conversation_id}/events/count") > 3


def test_sdk_resumes_and_deletes_the_sandbox(results: Any) -> None:
    assert results["resumed"] == [0, "hello, 23 letters\n", ""]
    assert results["afterwards"] == [None]


@pytest.mark.nightly  # the script of the other tests covers this for each change
def test_guide_runs_a_conversation(site: Site) -> None:
    output = site.run("python", "-", program=guides.example(CLIENT, "python", site.url))
    assert "Linux" in output
    assert "finished" in output


def test_guide_has_the_tested_versions() -> None:
    locked = ("tests/images/clients/sdk.in", "deploy/image/sandbox/requirements.in")
    tested = "".join((REPOSITORY / path).read_text() for path in locked)
    assert [name for name in guides.installed(CLIENT).split() if f"\n{name}\n" not in tested] == []

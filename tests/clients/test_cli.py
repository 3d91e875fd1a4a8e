"""The `openhands` command, as in its guide: a device login, approved as a user does it, and a conversation."""

import re
import subprocess
from typing import Any

import pytest

from tests.clients import guides
from tests.clients.site import Site
from tests.services import http
from tests.services.directories import REPOSITORY
from tests.waiting import eventually

CLIENT = "OpenHands CLI"


@pytest.fixture(scope="module")
def output(site: Site) -> str:
    """The output of the guide's commands; the login is approved at the address that they print."""
    with site.begin("bash", "-ec", guides.example(CLIENT, "sh", site.url)) as process:
        try:
            output = approve(process, site)
            output += process.communicate(timeout=300)[0]
        finally:
            process.kill()
    assert process.returncode == 0, output
    return output


def approve(process: "subprocess.Popen[str]", site: Site) -> str:
    """Read the output up to the address, send the form there, and return the text read."""
    read = ""
    assert process.stdout is not None
    for line in process.stdout:
        read += line
        if found := re.search(r"URL: (\S+)\?user_code=(\S+)", line):
            assert "Approve a device" in http.get(found[0].removeprefix("URL: ")).text
            form = {"user_code": found[2], "api_key": site.alice.user.key, "decision": "approve"}
            http.post(found[1], data=form).raise_for_status()
            return read
    raise AssertionError(read)


def test_cli_logs_in(site: Site, output: str) -> None:
    assert "Logged into OpenHands Cloud" in output
    assert "LLM Model: openai/greeter" in output
    assert "Settings synchronized successfully" in output
    assert "Could not fetch user data" not in output
    # The command has its own key, which can be revoked separately.
    assert len(site.alice.read("/api/keys")) == 2


def test_cli_runs_a_conversation(site: Site, output: str) -> None:
    found = re.search(r"Conversation ID: ([0-9a-f-]+)", output)
    assert found, output
    # The command polls for 30 s. If the start takes longer, on a busy machine, it prints the start task's id instead.
    conversation_id = started(site, found[1]) if "still initializing" in output else found[1]

    def finished() -> Any:
        [conversation] = site.alice.read("/api/v1/app-conversations", ids=conversation_id)
        return conversation if conversation["execution_status"] == "finished" else None

    assert eventually(finished)["title"]
    page = site.alice.read(f"/api/v1/conversation/{conversation_id}/events/search", limit=100)
    assert "It is written." in str(page["items"])


def started(site: Site, task_id: str) -> str:
    return str(site.alice.await_start(task_id)["app_conversation_id"])


def test_guide_has_the_tested_version() -> None:
    assert f"\n{guides.installed(CLIENT)}\n" in (REPOSITORY / "tests/images/clients/cli.in").read_text()

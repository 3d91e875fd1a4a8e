"""The `openhands` command: a login by device, approved as its user does it, and a conversation; as its guide says."""

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
def said(site: Site) -> str:
    """The output of the guide's commands; the address in it is read and approved."""
    with site.begin("bash", "-ec", guides.example(CLIENT, "sh", site.url)) as process:
        try:
            said = approve(process, site)
            said += process.communicate(timeout=120)[0]
        finally:
            process.kill()
    assert process.returncode == 0, said
    return said


def approve(process: "subprocess.Popen[str]", site: Site) -> str:
    """Read until the address is shown, and send its form; what was read."""
    read = ""
    assert process.stdout is not None
    for line in process.stdout:
        read += line
        if found := re.search(r"URL: (\S+)\?user_code=(\S+)", line):
            assert "Approve a device" in http.get(found[0].removeprefix("URL: ")).text
            form = {"user_code": found[2], "api_key": site.alice.person.key, "decision": "approve"}
            http.post(found[1], data=form).raise_for_status()
            return read
    raise AssertionError(read)


def test_login(site: Site, said: str) -> None:
    assert "Logged into OpenHands Cloud" in said
    assert "LLM Model: openai/greeter" in said
    assert "Settings synchronized successfully" in said
    assert "Could not fetch user data" not in said
    # It has a key of its own, which can be revoked alone.
    assert len(site.alice.read("/api/keys")) == 2


def test_conversation(site: Site, said: str) -> None:
    found = re.search(r"Conversation ID: ([0-9a-f-]+)", said)
    assert found, said
    # It asks for 30 s; where a start takes longer, on a busy machine, it names the start's id instead.
    conversation_id = started(site, found[1]) if "still initializing" in said else found[1]

    def finished() -> Any:
        [conversation] = site.alice.read("/api/v1/app-conversations", ids=conversation_id)
        return conversation if conversation["execution_status"] == "finished" else None

    assert eventually(finished)["title"]
    page = site.alice.read(f"/api/v1/conversation/{conversation_id}/events/search", limit=100)
    assert "It is written." in str(page["items"])


def started(site: Site, task_id: str) -> str:
    return str(site.alice.await_start(task_id)["app_conversation_id"])


def test_guide_names_the_version_that_is_tested() -> None:
    assert f"\n{guides.installed(CLIENT)}\n" in (REPOSITORY / "tests/images/clients/cli.in").read_text()

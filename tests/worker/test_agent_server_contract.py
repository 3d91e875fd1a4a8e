"""The agent server's contract, on the real one in its image and on the fake that stands in for it elsewhere."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from deploy.demo.network import bridge_address
from deploy.demo.scripted_model import Finish, Gate, Script, ScriptedModel, Wait
from shared.ids import new_id
from tests.fakes.agent_server import FakeAgentServer, Reply
from tests.services.agent_servers import booted
from tests.waiting import eventually
from worker.agent_request import TITLE_PROFILE, AgentInputs, build_request
from worker.agent_server import AgentServer, open_client
from worker.agent_server_errors import AgentServerRefused, WrongServer
from worker.sandbox_container import server_config

KEY = "the-session-key"
WEBHOOK = "http://127.0.0.1:9/nobody"
URL = "http://agent-server:8000"
UNKNOWN = "0" * 32
FOLDER = "/workspace/project"
# What the real server says to these commands.
REPLIES = {
    "exit 3": Reply(3),
    "echo out; echo err >&2": Reply(0, "out\n", "err\n"),
    "pwd": Reply(0, "/tmp\n"),
    "sleep 60": Reply(-1),
    "cat '/tmp/aw contract/file'": Reply(0, "content"),
}


@pytest.fixture(scope="module")
def gate() -> Gate:
    return Gate()


@pytest.fixture(scope="module")
def model(gate: Gate) -> Iterator[ScriptedModel]:
    scripts = {"held": Script([Wait(gate, Finish("at last"))]), "quick": Script([Finish("done")], title="A title")}
    with ScriptedModel(scripts, host=bridge_address()) as model:
        yield model


@pytest.fixture(scope="module")
def sandbox_url() -> Iterator[str]:
    """A real sandbox, as the worker makes it."""
    with booted(server_config(KEY, webhook_url=WEBHOOK, origins=[])) as url, open_client() as client:
        eventually(AgentServer(url, KEY, client).is_ready, deadline_seconds=120)
        yield url


@pytest.fixture(params=["fake", "real"])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, httpx.Client]]:
    """Where the server is, and who can reach it."""
    if request.param == "fake":
        fake = FakeAgentServer(KEY)
        fake.replies = REPLIES
        with httpx.Client(transport=httpx.MockTransport(fake.answer)) as client:
            yield URL, client
    else:
        url = request.getfixturevalue("sandbox_url")
        with open_client() as client:
            yield url, client


@pytest.fixture
def server(place: tuple[str, httpx.Client]) -> AgentServer:
    url, client = place
    return AgentServer(url, KEY, client)


@pytest.fixture
def body(model: ScriptedModel) -> dict[str, Any]:
    """A conversation that stands in the middle of its first run until the module ends."""
    return body_for(model, initial_message={"role": "user", "content": [{"type": "text", "text": "Hello"}]})


def body_for(model: ScriptedModel, **inputs: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "conversation_id": new_id(),
        "working_dir": FOLDER,
        "llm_model": "openai/held",
        "llm_base_url": model.base_url,
        "llm_api_key": "sk-1",
    }
    return build_request(AgentInputs(**(defaults | inputs)))


def post(place: tuple[str, httpx.Client], body: dict[str, Any]) -> httpx.Response:
    url, client = place
    headers = {"X-Session-API-Key": KEY}
    return client.post(f"{url}/api/conversations", headers=headers, json=body, timeout=60)


class TestProbe:
    def test_takes_its_key(self, server: AgentServer) -> None:
        assert server.is_ready()

    def test_takes_no_other(self, place: tuple[str, httpx.Client]) -> None:
        url, client = place
        with pytest.raises(WrongServer):
            AgentServer(url, "another", client).is_ready()
        with pytest.raises(WrongServer):
            AgentServer(url, "another", client).run_command("true")
        assert client.get(f"{url}/api/conversations/count").status_code == 401


class TestConversation:
    def test_is_made_once(self, place: tuple[str, httpx.Client], server: AgentServer, body: dict[str, Any]) -> None:
        first = post(place, body)
        again = post(place, body | {"autotitle": False})
        assert (first.status_code, again.status_code) == (201, 200)
        assert first.json()["id"].replace("-", "") == again.json()["id"].replace("-", "") == body["conversation_id"]
        known = server.get_conversation(body["conversation_id"])
        assert known
        assert known["last_user_message_id"]
        said = [event for event in server.list_events(body["conversation_id"]) if event["kind"] == "MessageEvent"]
        assert [event["source"] for event in said] == ["user"]

    def test_without_a_message_waits_for_one(self, server: AgentServer, model: ScriptedModel) -> None:
        body = body_for(model)
        server.create_conversation(body)
        known = server.get_conversation(body["conversation_id"])
        assert known
        assert (known["last_user_message_id"], known["execution_status"]) == (None, "idle")
        server.send_message(body["conversation_id"], {"role": "user", "content": [], "run": False})
        known = server.get_conversation(body["conversation_id"])
        assert known
        assert known["last_user_message_id"]

    def test_lists_what_its_user_said_newest_first(self, server: AgentServer, model: ScriptedModel) -> None:
        body = body_for(model)
        server.create_conversation(body)
        for text in ("one", "two"):
            content = [{"type": "text", "text": text, "cache_prompt": False}]
            server.send_message(id_of(body), {"role": "user", "content": content, "run": False})
        said = server.list_messages(id_of(body))
        assert [event["llm_message"]["content"][0]["text"] for event in said] == ["two", "one"]
        assert len({event["id"] for event in said}) == 2

    def test_is_run(self, server: AgentServer, body: dict[str, Any]) -> None:
        server.create_conversation(body)
        eventually(lambda: [item for item in server.find_running() if undashed(item) == id_of(body)])
        server.run(id_of(body))  # at work already: no error
        assert server.interrupt(id_of(body))

    def test_is_interrupted(self, server: AgentServer, body: dict[str, Any]) -> None:
        server.create_conversation(body)
        dashed = eventually(lambda: [item for item in server.find_running() if undashed(item) == id_of(body)])
        assert server.interrupt(dashed[0])
        eventually(lambda: (server.get_conversation(id_of(body)) or {})["execution_status"] == "paused")
        assert dashed[0] not in server.find_running()
        assert server.interrupt(id_of(body)), "once more is as good"

    def test_is_renamed(self, server: AgentServer, model: ScriptedModel) -> None:
        body = body_for(model, title="ignored here")
        server.create_conversation(body)
        assert (server.get_conversation(id_of(body)) or {})["title"] is None
        assert server.rename_conversation(id_of(body), "A better title")
        assert (server.get_conversation(id_of(body)) or {})["title"] == "A better title"

    def test_is_deleted(self, server: AgentServer, model: ScriptedModel) -> None:
        body = body_for(model)
        server.create_conversation(body)
        assert server.delete_conversation(id_of(body))
        assert server.get_conversation(id_of(body)) is None

    def test_that_nobody_knows(self, server: AgentServer) -> None:
        assert server.get_conversation(UNKNOWN) is None
        assert not server.rename_conversation(UNKNOWN, "A title")
        assert not server.interrupt(UNKNOWN)
        assert not server.delete_conversation(UNKNOWN)
        for ask in (server.list_messages, server.run):
            with pytest.raises(AgentServerRefused) as refusal:
                ask(UNKNOWN)
            assert refusal.value.status == 404

    @pytest.mark.parametrize("change", [{"tags": {"Not A Tag": "x"}}, {"model": ""}], ids=["tag", "model"])
    def test_that_makes_no_sense_is_refused(
        self, place: tuple[str, httpx.Client], server: AgentServer, body: dict[str, Any], change: dict[str, Any]
    ) -> None:
        if "model" in change:
            body["agent_settings"]["llm"] |= change
        else:
            body |= change
        assert post(place, body).status_code == 422
        with pytest.raises(AgentServerRefused) as refusal:
            server.create_conversation(body)
        assert "sk-1" not in str(refusal.value)
        assert server.get_conversation(id_of(body)) is None


class TestProfile:
    def test_is_kept_and_replaced(self, server: AgentServer) -> None:
        for model in ("openai/one", "openai/two"):
            server.keep_profile(TITLE_PROFILE, {"model": model, "api_key": "sk-9"})

    def test_that_makes_no_sense_is_refused(self, server: AgentServer) -> None:
        with pytest.raises(AgentServerRefused) as refusal:
            server.keep_profile(TITLE_PROFILE, {"model": "", "api_key": "sk-9"})
        assert "sk-9" not in str(refusal.value)


class TestShell:
    def test_exit_code(self, server: AgentServer) -> None:
        assert server.run_command("exit 3").exit_code == 3

    def test_streams(self, server: AgentServer) -> None:
        result = server.run_command("echo out; echo err >&2")
        assert (result.exit_code, result.stdout, result.stderr) == (0, "out\n", "err\n")

    def test_folder(self, server: AgentServer) -> None:
        assert server.run_command("pwd", cwd="/tmp").stdout == "/tmp\n"

    def test_time_limit(self, server: AgentServer) -> None:
        assert server.run_command("sleep 60", timeout=1).exit_code == -1

    def test_answer_on_the_wire(self, place: tuple[str, httpx.Client]) -> None:
        url, client = place
        headers, command = {"X-Session-API-Key": KEY}, {"command": "exit 3", "cwd": None, "timeout": 5}
        answer = client.post(f"{url}/api/bash/execute_bash_command", headers=headers, json=command).json()
        assert {name: answer[name] for name in ("exit_code", "stdout", "stderr")} == vars(REPLIES["exit 3"])

    def test_file(self, server: AgentServer) -> None:
        server.upload("/tmp/aw contract/file", b"content")
        assert server.run_command("cat '/tmp/aw contract/file'").stdout == "content"

    def test_file_without_a_folder_is_refused(self, server: AgentServer) -> None:
        with pytest.raises(AgentServerRefused, match="400"):
            server.upload("file", b"content")


def test_title_is_made_in_the_background(sandbox_url: str, model: ScriptedModel) -> None:
    """What only the real one does."""
    message = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
    body = body_for(model, llm_model="openai/quick", initial_message=message)
    with open_client() as client:
        server = AgentServer(sandbox_url, KEY, client)
        server.create_conversation(body)
        assert eventually(lambda: (server.get_conversation(id_of(body)) or {})["title"]) == "A title"


def test_title_is_made_by_the_llm_for_titles(sandbox_url: str, model: ScriptedModel) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
    titles = {"model": "openai/quick", "api_key": "sk-2", "base_url": model.base_url}
    body = body_for(model, title_llm=titles, initial_message=message)
    with open_client() as client:
        server = AgentServer(sandbox_url, KEY, client)
        server.keep_profile(TITLE_PROFILE, titles)
        server.create_conversation(body)
        assert eventually(lambda: (server.get_conversation(id_of(body)) or {})["title"]) == "A title"


def test_disabled_skills_are_part_of_the_agent(sandbox_url: str, model: ScriptedModel) -> None:
    body = body_for(model, disabled_skills=["docker"])
    with open_client() as client:
        made = AgentServer(sandbox_url, KEY, client).create_conversation(body)
    assert made["agent"]["agent_context"]["disabled_skills"] == ["docker"]


def test_a_folder_that_is_not_there_is_made(sandbox_url: str, model: ScriptedModel) -> None:
    """As that of a conversation which shares its sandbox."""
    folder = "/workspace/project/of-its-own"
    body = body_for(model, working_dir=folder)
    with open_client() as client:
        server = AgentServer(sandbox_url, KEY, client)
        server.create_conversation(body)
        assert server.run_command("pwd", folder).stdout.strip() == folder


def id_of(body: dict[str, Any]) -> str:
    return str(body["conversation_id"])


def undashed(text: str) -> str:
    return text.replace("-", "")

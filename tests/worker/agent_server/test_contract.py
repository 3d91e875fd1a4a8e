"""The agent server's contract, on the real server and on both stand-ins: in memory and in the tiny image."""

from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Any

import pytest

from deploy.demo.scripted_model import ScriptedModel
from shared.agent_server.errors import AgentServerRefused, AgentServerUnreachable, WrongServer
from shared.conversations.webhook_reports import read_conversation
from shared.ids import new_id
from tests.factories import DOOR
from tests.services import http
from tests.services.agent_servers import FOLDER, HELLO, KEY, TargetServer, body_for
from tests.waiting import eventually
from worker.agent_server.client import AgentServer
from worker.agent_server.transport import open_client
from worker.conversations.agent_request import TITLE_PROFILE

UNKNOWN = "0" * 32


@pytest.fixture
def server(target: TargetServer) -> AgentServer:
    return target.server


@pytest.fixture
def body(contract_model: ScriptedModel) -> dict[str, Any]:
    """Request for a conversation that stays in its first run."""
    return body_for(contract_model, initial_message=HELLO)


@pytest.fixture
def running(server: AgentServer, body: dict[str, Any]) -> Iterator[str]:
    """Id of a running conversation, which is interrupted after the test, because the server limits concurrent runs."""
    server.create_conversation(body)
    eventually(lambda: status_of(server, id_of(body)) == "running")
    yield id_of(body)
    server.interrupt(id_of(body))


@pytest.fixture
def idle(server: AgentServer, contract_model: ScriptedModel) -> str:
    """Id of a conversation that waits for its first message."""
    body = body_for(contract_model)
    server.create_conversation(body)
    return id_of(body)


class TestProbe:
    def test_server_accepts_its_key(self, server: AgentServer) -> None:
        assert server.is_ready()

    def test_server_rejects_another_key(self, target: TargetServer) -> None:
        with_another_key = AgentServer(target.url, "another", target.client)
        with pytest.raises(WrongServer):
            with_another_key.is_ready()
        with pytest.raises(WrongServer):
            with_another_key.run_command("true")
        assert target.request("GET", "/conversations/count", key="another").status_code == 401


class TestConversation:
    def test_conversation_is_created_once(
        self, target: TargetServer, server: AgentServer, body: dict[str, Any]
    ) -> None:
        first = target.request("POST", "/conversations", json=body)
        again = target.request("POST", "/conversations", json=body | {"autotitle": False})
        assert (first.status_code, again.status_code) == (201, 200)
        assert first.json()["id"].replace("-", "") == again.json()["id"].replace("-", "") == id_of(body)
        known = server.get_conversation(id_of(body))
        assert known
        assert known["last_user_message_id"]
        said = [event for event in target.list_events(id_of(body)) if event["kind"] == "MessageEvent"]
        assert [event["source"] for event in said] == ["user"]
        assert said[0]["llm_message"]["content"][0]["text"] == "Hello"

    def test_conversation_has_the_fields_that_the_service_reads(
        self, server: AgentServer, contract_model: ScriptedModel
    ) -> None:
        body = body_for(contract_model, tags={"team": "blue green", "on": "call"})
        server.create_conversation(body)
        known = server.get_conversation(id_of(body))
        assert known
        assert (known["id"], known["title"]) == (dashed(id_of(body)), None)
        parsed = read_conversation(known)
        assert parsed.id == id_of(body)
        assert (parsed.report.execution_status, parsed.report.llm_model) == ("idle", "openai/held")
        assert (parsed.report.agent_kind, parsed.report.working_dir) == ("openhands", FOLDER)
        assert parsed.report.tags == {"team": "blue green", "on": "call"}
        assert "usage_to_metrics" in known["stats"]
        names = list(known)  # a document that is too large is read up to what grows
        assert names.index("execution_status") < names.index("stats")

    def test_conversation_waits_for_its_first_message(self, server: AgentServer, idle: str) -> None:
        known = server.get_conversation(idle)
        assert known
        assert (known["last_user_message_id"], known["execution_status"]) == (None, "idle")
        server.send_message(idle, {"role": "user", "content": [], "run": False})
        known = server.get_conversation(idle)
        assert known
        assert (known["last_user_message_id"] is None, known["execution_status"]) == (False, "idle")

    def test_messages_of_users_are_listed_newest_first(self, server: AgentServer, idle: str) -> None:
        for text in ("one", "two"):
            server.send_message(idle, message(text))
        said = list(server.list_messages(idle))
        assert [message.llm_message.content[0]["text"] for message in said] == ["two", "one"]
        assert len({message.id for message in said}) == 2

    def test_events_are_listed_page_by_page(self, target: TargetServer, server: AgentServer, idle: str) -> None:
        for number in range(5):
            server.send_message(idle, message(f"message {number}"))
        path = f"/conversations/{idle}/events/search"
        pages: list[list[str]] = []
        params: dict[str, Any] = {"limit": 2}
        while not pages or params.get("page_id"):
            page = target.request("GET", path, params=params).json()
            pages.append([event["id"] for event in page["items"]])
            params["page_id"] = page["next_page_id"]
        assert {len(page) for page in pages[:-1]} == {2}
        assert list(chain(*pages)) == [event["id"] for event in target.list_events(idle)]

    @pytest.mark.parametrize("limit", [0, 101])
    def test_invalid_page_size_is_refused(self, target: TargetServer, idle: str, limit: int) -> None:
        path = f"/conversations/{idle}/events/search"
        assert target.request("GET", path, params={"limit": limit}).status_code == 422

    def test_conversation_runs_on_its_first_message(self, server: AgentServer, running: str) -> None:
        assert dashed(running) in server.find_running()

    def test_run_is_not_repeated(self, target: TargetServer, server: AgentServer, running: str) -> None:
        assert target.request("POST", f"/conversations/{running}/run").status_code == 409
        assert not server.run(running)
        assert status_of(server, running) == "running"

    def test_running_conversation_is_interrupted(self, server: AgentServer, running: str) -> None:
        assert server.interrupt(running)
        eventually(lambda: status_of(server, running) == "paused")
        assert dashed(running) not in server.find_running()
        assert server.interrupt(running), "a repeated interrupt must succeed"
        assert status_of(server, running) == "paused"

    def test_run_is_interrupted_before_it_begins(self, server: AgentServer, idle: str) -> None:
        assert server.interrupt(idle)
        assert status_of(server, idle) == "paused"

    def test_conversation_continues_after_an_interruption(self, server: AgentServer, running: str) -> None:
        server.interrupt(running)
        eventually(lambda: status_of(server, running) == "paused")
        assert server.run(running)
        eventually(lambda: status_of(server, running) == "running")

    def test_conversation_continues_with_a_message_that_requests_a_run(self, server: AgentServer, idle: str) -> None:
        server.send_message(idle, message("Go on", run=True))
        eventually(lambda: status_of(server, idle) == "running")

    def test_running_conversation_accepts_a_message(self, server: AgentServer, running: str) -> None:
        server.send_message(running, message("And then?", run=True))
        eventually(lambda: len(list(server.list_messages(running))) == 2)
        assert status_of(server, running) == "running"

    @pytest.mark.parametrize("target", ["tiny", "real"], indirect=True)
    def test_message_that_cannot_be_stored_is_not_accepted(
        self, target: TargetServer, server: AgentServer, idle: str
    ) -> None:
        folder = f"/workspace/conversations/{idle}"
        server.run_command(f"find {folder} -exec chmod a-w {{}} +")
        with pytest.raises(AgentServerUnreachable, match="500"):
            server.send_message(idle, message("lost"))
        with open_client(DOOR) as client:  # the server closes the connection after such an error
            restored = AgentServer(target.url, KEY, client)
            restored.run_command(f"find {folder} -exec chmod u+w {{}} +")
            assert list(restored.list_messages(idle)) == []

    def test_conversation_is_renamed(self, server: AgentServer, contract_model: ScriptedModel) -> None:
        body = body_for(contract_model, title="ignored here")
        server.create_conversation(body)
        assert (server.get_conversation(id_of(body)) or {})["title"] is None
        assert server.rename_conversation(id_of(body), 'A "better" title')
        assert (server.get_conversation(id_of(body)) or {})["title"] == 'A "better" title'
        assert server.rename_conversation(id_of(body), f"  {'t' * 500}")
        assert (server.get_conversation(id_of(body)) or {})["title"] == "t" * 200

    def test_conversation_is_deleted(self, server: AgentServer, running: str) -> None:
        assert server.delete_conversation(running)
        assert server.get_conversation(running) is None
        assert dashed(running) not in server.find_running()

    def test_unknown_conversation_is_not_found(self, server: AgentServer) -> None:
        assert server.get_conversation(UNKNOWN) is None
        assert not server.rename_conversation(UNKNOWN, "A title")
        assert not server.interrupt(UNKNOWN)
        assert not server.delete_conversation(UNKNOWN)
        for send in (lambda unknown: list(server.list_messages(unknown)), server.run):
            with pytest.raises(AgentServerRefused) as failure:
                send(UNKNOWN)
            assert failure.value.status == 404

    @pytest.mark.parametrize("change", [{"tags": {"Not A Tag": "x"}}, {"model": ""}], ids=["tag", "model"])
    def test_invalid_body_is_refused(
        self, target: TargetServer, server: AgentServer, body: dict[str, Any], change: dict[str, Any]
    ) -> None:
        if "model" in change:
            body["agent_settings"]["llm"] |= change
        else:
            body |= change
        assert target.request("POST", "/conversations", json=body).status_code == 422
        with pytest.raises(AgentServerRefused) as failure:
            server.create_conversation(body)
        assert "sk-1" not in str(failure.value)
        assert server.get_conversation(id_of(body)) is None


class TestProfile:
    def test_profile_is_accepted_again(self, target: TargetServer, server: AgentServer) -> None:
        for model in ("openai/one", "openai/two"):
            server.keep_profile(TITLE_PROFILE, {"model": model, "api_key": "sk-9"})
            body = {"llm": {"model": model}, "include_secrets": True}
            assert target.request("POST", f"/profiles/{TITLE_PROFILE}", json=body).status_code == 201

    def test_invalid_body_is_refused(self, server: AgentServer) -> None:
        with pytest.raises(AgentServerRefused) as failure:
            server.keep_profile(TITLE_PROFILE, {"model": "", "api_key": "sk-9"})
        assert "sk-9" not in str(failure.value)


class TestRealServer:
    """Behavior that the stand-ins don't have: a model is called, and its response is used."""

    @pytest.fixture
    def server(self, sandbox_url: str) -> Iterator[AgentServer]:
        with open_client(DOOR) as client:
            yield AgentServer(sandbox_url, KEY, client)

    def test_title_is_generated_in_the_background(self, server: AgentServer, contract_model: ScriptedModel) -> None:
        body = body_for(contract_model, llm_model="openai/quick", initial_message=HELLO)
        server.create_conversation(body)
        assert eventually(lambda: (server.get_conversation(id_of(body)) or {})["title"]) == "A title"

    def test_title_is_generated_by_the_llm_for_titles(self, server: AgentServer, contract_model: ScriptedModel) -> None:
        titles = {"model": "openai/quick", "api_key": "sk-2", "base_url": contract_model.base_url}
        body = body_for(contract_model, title_llm=titles, initial_message=HELLO)
        server.keep_profile(TITLE_PROFILE, titles)
        server.create_conversation(body)
        assert eventually(lambda: (server.get_conversation(id_of(body)) or {})["title"]) == "A title"

    def test_profile_is_replaced(self, server: AgentServer, sandbox_url: str) -> None:
        url, headers = f"{sandbox_url}/api/profiles/{TITLE_PROFILE}", {"X-Session-API-Key": KEY}
        for model in ("openai/one", "openai/two"):
            server.keep_profile(TITLE_PROFILE, {"model": model, "api_key": "sk-9"})
            assert f'"{model}"' in http.get(url, headers=headers).text

    def test_first_message_of_another_role_is_lost(
        self, server: AgentServer, sandbox_url: str, contract_model: ScriptedModel
    ) -> None:
        body = body_for(contract_model, initial_message=HELLO | {"role": "assistant"})
        with pytest.raises(AgentServerUnreachable, match="500"):
            server.create_conversation(body)
        with open_client(DOOR) as client:  # the server closes the connection after such an error
            known = AgentServer(sandbox_url, KEY, client).get_conversation(id_of(body))
        assert known
        assert known["last_user_message_id"] is None

    def test_disabled_skills_are_part_of_the_agent(self, server: AgentServer, contract_model: ScriptedModel) -> None:
        made = server.create_conversation(body_for(contract_model, disabled_skills=["docker"]))
        assert made["agent"]["agent_context"]["disabled_skills"] == ["docker"]

    def test_missing_folder_is_created(self, server: AgentServer, contract_model: ScriptedModel) -> None:
        """The folder of a conversation that shares its sandbox, for example."""
        folder = f"{FOLDER}/{new_id()}"
        server.create_conversation(body_for(contract_model, working_dir=folder))
        assert server.run_command("pwd", folder).stdout.strip() == folder


def message(text: str, *, run: bool = False) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text, "cache_prompt": False}], "run": run}


def status_of(server: AgentServer, conversation_id: str) -> str:
    known = server.get_conversation(conversation_id)
    assert known
    return str(known["execution_status"])


def id_of(body: dict[str, Any]) -> str:
    return str(body["conversation_id"])


def dashed(conversation_id: str) -> str:
    return "-".join(conversation_id[start:end] for start, end in pairwise((0, 8, 12, 16, 20, 32)))

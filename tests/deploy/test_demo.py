"""The demo against recorded responses of the service."""

import io
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner

from deploy.demo import __main__ as command
from deploy.demo import account
from deploy.demo.client import DemoService
from deploy.demo.deadline import DemoDeadline
from deploy.demo.display import render, shortened
from deploy.demo.errors import DemoError
from deploy.demo.network import gateway
from deploy.demo.scripted_model import ScriptedModel
from deploy.demo.story import MODEL, SCRIPT, Story

URL = "http://service.test"
TASK, CONVERSATION, SANDBOX = "11" * 16, "22" * 16, "sandbox-1"
STAGES = ["WORKING", "WAITING_FOR_SANDBOX", "STARTING_CONVERSATION", "READY"]


def event(number: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"id": f"event-{number}", "timestamp": f"2026-11-20T09:53:4{number}", "kind": kind, **fields}


def text(words: str) -> list[dict[str, Any]]:
    return [{"cache_prompt": False, "type": "text", "text": words}]


EVENTS = [
    event(0, "SystemPromptEvent", source="agent"),
    event(1, "MessageEvent", source="user", llm_message={"role": "user", "content": text("Say [bold]hello")}),
    event(2, "ConversationStateUpdateEvent", key="execution_status", value="running"),
    event(3, "ConversationStateUpdateEvent", key="stats", value={"usage_to_metrics": {}}),
    event(
        4,
        "ActionEvent",
        tool_name="terminal",
        summary="look around",
        action={"command": "uname -sm", "kind": "TerminalAction"},
    ),
    event(
        5,
        "ObservationEvent",
        tool_name="terminal",
        observation={"content": text("Linux x86_64"), "exit_code": 0, "kind": "TerminalObservation"},
    ),
    event(6, "ActionEvent", tool_name="finish", action={"message": "All is done.", "kind": "FinishAction"}),
    event(7, "ObservationEvent", tool_name="finish", observation={"content": text("All is done.")}),
]


class RecordedService:
    """A recorded service. Each request advances the state of what it reads."""

    def __init__(self, *, stages: list[str] = STAGES, status: str = "finished") -> None:
        self.stages = list(stages)
        self.status = status
        self.shown = 0
        self.deleted = False
        self.calls: list[tuple[str, str, bytes]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.calls.append((request.method, request.url.path, request.content))
        return httpx.Response(200, json=self.respond(request))

    def respond(self, request: httpx.Request) -> Any:
        route = (request.method, request.url.path.removeprefix("/api/v1"))
        match route:
            case ("POST", "/app-conversations"):
                return {"id": TASK, "status": "WORKING"}
            case ("GET", "/app-conversations/start-tasks"):
                return [self.task()]
            case ("GET", "/app-conversations"):
                return [self.conversation()]
            case ("GET", "/sandboxes"):
                return [None if self.deleted else self.sandbox()]
            case ("DELETE", path) if path == f"/sandboxes/{SANDBOX}":
                self.deleted = request.url.params["sandbox_id"] == SANDBOX
        if request.url.path.endswith("/events/search"):
            return self.events(request)
        return {"success": True}

    def task(self) -> dict[str, Any]:
        stage = self.stages.pop(0) if len(self.stages) > 1 else self.stages[0]
        ready = {"app_conversation_id": CONVERSATION} if stage == "READY" else {}
        detail = "image_pull_failed: no such image" if stage == "ERROR" else None
        return {"id": TASK, "status": stage, "sandbox_id": SANDBOX, "detail": detail, **ready}

    def conversation(self) -> dict[str, Any]:
        states = {"execution_status": self.status, "sandbox_status": "MISSING" if self.deleted else "RUNNING"}
        return {"id": CONVERSATION, "title": SCRIPT.title, **states}

    def sandbox(self) -> dict[str, Any]:
        urls = [{"name": "AGENT_SERVER", "url": "http://127.0.0.1:40001", "port": 8000}]
        return {"id": SANDBOX, "status": "RUNNING", "sandbox_spec_id": "spec", "exposed_urls": urls}

    def events(self, request: httpx.Request) -> dict[str, Any]:
        """Two more events at each request, in pages of three."""
        start = int(request.url.params.get("page_id", "0"))
        if start == 0:
            self.shown = min(self.shown + 2, len(EVENTS))
        stop = min(start + 3, self.shown)
        return {"items": EVENTS[start:stop], "next_page_id": str(stop) if stop < self.shown else None}


@pytest.fixture
def recorded() -> RecordedService:
    return RecordedService()


def story_of(recorded: RecordedService, seconds: float = 30) -> tuple[Story, io.StringIO]:
    written = io.StringIO()
    service = DemoService(URL, "key", httpx.MockTransport(recorded))
    deadline = DemoDeadline(seconds, pause=0.001)
    return Story(service, Console(file=written, width=100), deadline), written


def test_demo_shows_stages_command_output_answer_sandbox_and_row(recorded: RecordedService) -> None:
    story, written = story_of(recorded)
    assert story.play("http://172.17.0.1:1/v1", "model-key") == CONVERSATION
    output = written.getvalue()
    parts = [
        "WAITING_FOR_SANDBOX",
        "READY",
        "Say [bold]hello",
        "$ uname -sm",
        "Linux x86_64",
        "exit code 0",
        "All is done.",
        SANDBOX,
        "http://127.0.0.1:40001",
        str(SCRIPT.title),
        "finished",
    ]
    places = [output.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)
    assert "model-key" not in output


def test_events_are_not_shown_twice(recorded: RecordedService) -> None:
    story, written = story_of(recorded)
    story.play("http://172.17.0.1:1/v1", "model-key")
    assert written.getvalue().count("$ uname -sm") == 1
    assert written.getvalue().count("All is done.") == 1
    assert len(story.shown) == len(EVENTS)


def test_settings_name_the_scripted_model(recorded: RecordedService) -> None:
    story, _ = story_of(recorded)
    story.play("http://172.17.0.1:1/v1", "model-key")
    method, path, body = recorded.calls[0]
    assert (method, path) == ("POST", "/api/settings")
    assert b'"llm_model":"openai/demo"' in body.replace(b": ", b":")
    assert b"http://172.17.0.1:1/v1" in body


def test_conversation_is_shown_after_the_sandbox_is_deleted(
    recorded: RecordedService,
) -> None:
    story, written = story_of(recorded)
    conversation = story.play("http://172.17.0.1:1/v1", "model-key")
    story.delete_sandbox()
    story.show_afterwards(conversation)
    assert recorded.deleted
    assert "MISSING" in written.getvalue()


def test_failed_start_is_explained() -> None:
    story, written = story_of(RecordedService(stages=["WORKING", "WAITING_FOR_SANDBOX", "ERROR"]))
    with pytest.raises(DemoError, match="image_pull_failed: no such image"):
        story.play("http://172.17.0.1:1/v1", "model-key")
    assert "WAITING_FOR_SANDBOX" in written.getvalue()


def test_failed_agent_ends_the_demo() -> None:
    story, _ = story_of(RecordedService(status="error"))
    with pytest.raises(DemoError, match="state error"):
        story.play("http://172.17.0.1:1/v1", "model-key")


def test_start_that_never_ends_times_out() -> None:
    story, _ = story_of(RecordedService(stages=["WORKING"]), seconds=0.1)
    with pytest.raises(DemoError, match="waiting for the conversation to start"):
        story.play("http://172.17.0.1:1/v1", "model-key")


def test_failed_demo_leaves_no_sandbox() -> None:
    recorded = RecordedService(status="error")
    story, _ = story_of(recorded)
    with (
        ScriptedModel({MODEL: SCRIPT}) as model,
        pytest.raises(DemoError, match="state error"),
    ):
        command.show(story, model, keep=False)
    assert recorded.deleted


@pytest.mark.parametrize("keep", [True, False])
def test_keep_option_determines_whether_the_sandbox_is_kept(recorded: RecordedService, *, keep: bool) -> None:
    story, written = story_of(recorded)
    with ScriptedModel({MODEL: SCRIPT}) as model:
        command.show(story, model, keep=keep)
    assert recorded.deleted is not keep
    assert f"{URL}/api/v1/app-conversations?ids={CONVERSATION}" in written.getvalue()


def test_real_user_s_model_settings_are_not_replaced() -> None:
    stored = httpx.MockTransport(lambda _: httpx.Response(200, json={"llm_model": "openai/gpt-x"}))
    with pytest.raises(DemoError, match="openai/gpt-x"):
        command.require_unused_settings(DemoService(URL, "key", stored))


@pytest.mark.parametrize(
    "reply", [httpx.Response(404, json={}), httpx.Response(200, json={"llm_model": "openai/demo"})]
)
def test_user_without_own_model_settings_may_run_the_demo(reply: httpx.Response) -> None:
    requested: list[httpx.Request] = []

    def respond(request: httpx.Request) -> httpx.Response:
        requested.append(request)
        return reply

    command.require_unused_settings(DemoService(URL, "key", httpx.MockTransport(respond)))
    assert [(request.method, request.url.path) for request in requested] == [("GET", "/api/settings")]


def test_error_response_is_shown_with_its_body() -> None:
    refusing = httpx.MockTransport(lambda _: httpx.Response(422, json={"detail": "no such field"}))
    with pytest.raises(DemoError, match=r"answered 422.*no such field"):
        DemoService(URL, "key", refusing).start_conversation("hello")


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_command_without_a_server_explains_how_to_start_one(closed_port: int) -> None:
    result = CliRunner().invoke(command.app, ["--url", f"http://127.0.0.1:{closed_port}"])
    assert result.exit_code == 1
    assert "make run" in result.output


def test_demo_user_gets_a_key_that_is_revoked_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, ...]] = []

    def run(*arguments: str) -> str:
        ran.append(arguments)
        return "aw_abcdefghijklmnop\n" if arguments[1] == "create" and arguments[0] == "keys" else ""

    monkeypatch.setattr(account, "run", run)
    with account.temporary_key() as key:
        assert key == "aw_abcdefghijklmnop"
        assert ran == [
            ("users", "create", "demo", "--exist-ok"),
            ("keys", "create", "demo", "--name", "demo"),
        ]
    assert ran[2:] == [("keys", "revoke", "aw_abcdefgh")]


def test_bridge_gateway_is_found_even_if_the_engine_omits_it() -> None:
    assert gateway([{"Subnet": "172.17.0.0/16"}]) == "172.17.0.1"
    assert gateway([{"Subnet": "fd00::/64"}, {"Subnet": "10.1.0.0/24", "Gateway": "10.1.0.9"}]) == "10.1.0.9"
    with pytest.raises(DemoError, match="--model-host"):
        gateway([])


@pytest.mark.parametrize(("kind", "field"), [("AgentErrorEvent", "error"), ("ConversationErrorEvent", "detail")])
def test_errors_of_the_agent_are_shown(kind: str, field: str) -> None:
    assert "no money" in str(render(event(0, kind, **{field: "no money"})))


def test_event_of_another_kind_is_skipped() -> None:
    assert render(event(0, "CondensationRequest")) is None


def test_end_of_long_output_is_shown() -> None:
    lines = shortened("\n".join(str(number) for number in range(100))).splitlines()
    assert lines[0] == "… 60 lines omitted …"
    assert lines[-1] == "99"

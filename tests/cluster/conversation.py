"""A conversation with a scripted model that continues after failures of the cluster."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from deploy.demo.display import answer_of
from deploy.demo.scripted_model import Finish, RunCommand, Script, ScriptedModel
from tests.cluster.machines import Machine
from tests.cluster.service import Installed
from tests.cluster.transcript import Transcript
from tests.services import http
from tests.waiting import eventually

MODEL = "openai/scripted"
MODEL_KEY = "a-key-of-the-tests"
# Adds a line with each message, to a file that exists as long as the conversation.
COMMAND = "echo line >>lines; wc -l <lines"
SCRIPT = Script((RunCommand(COMMAND), Finish("One more line is written.")), title="Lines")
CONVERSATIONS = "/api/v1/app-conversations"
SANDBOXES = "/api/v1/sandboxes"
# The settings for a conversation in a sandbox of the load's image, which has no agent and uses no model.
SETTINGS = {"llm_model": "openai/none", "llm_api_key": "key", "llm_base_url": "http://127.0.0.1:9"}


@contextmanager
def running_model(machine: Machine, port: int = 3999) -> Iterator[ScriptedModel]:
    """Run a model on a machine."""
    scripts = {MODEL: SCRIPT}
    with machine.namespace.call(lambda: ScriptedModel(scripts, machine.address, port, MODEL_KEY)) as model:
        yield model


def allow(model: ScriptedModel, machine: Machine, installed: Installed) -> None:
    """Allow sandboxes to reach a model's private address."""
    installed.run(machine, "models", "allow", model.url.removeprefix("http://"))


def make_key(installed: Installed, machine: Machine, user: str) -> str:
    """Create a user; return the user's API key."""
    installed.run(machine, "users", "create", user, into=Transcript())
    return installed.run(machine, "keys", "create", user, "--name", "tests", into=Transcript()).strip()


@dataclass
class Conversation:
    """A user's conversation through the API of a machine."""

    machine: Machine
    key: str
    transcript: Transcript
    id: str = ""
    sandbox_id: str = ""
    said: int = field(default=0)

    def start(self, model: ScriptedModel) -> None:
        """Start the conversation with a first message, and wait for the answer."""
        began = time.monotonic()
        self._start({"llm_model": MODEL, "llm_api_key": MODEL_KEY, "llm_base_url": model.base_url})
        self._await_answer("start a conversation, and get its answer", began)

    def start_without_agent(self) -> None:
        """Start the conversation in a sandbox of the load's image, and wait until the service has its first message."""
        began = time.monotonic()
        self._start(SETTINGS)
        eventually(self.events, deadline_seconds=60)
        self.transcript.add("(start a conversation)", "READY", time.monotonic() - began)

    def go_on(self) -> None:
        """Send another message, and wait for the answer."""
        began = time.monotonic()
        self.send("POST", f"{CONVERSATIONS}/{self.id}/send-message", json=_message("Go on."))
        self._await_answer("send another message to the conversation, and get its answer", began)

    def events(self) -> list[dict[str, Any]]:
        """The events of the conversation that the service stores."""
        found: list[dict[str, Any]] = self.send(
            "GET", f"/api/v1/conversation/{self.id}/events/search", params={"limit": 100}
        )["items"]
        return found

    def sandbox(self) -> dict[str, Any]:
        """The sandbox of the conversation."""
        found: dict[str, Any] = self.send("GET", f"{SANDBOXES}/{self.sandbox_id}")
        return found

    def await_sandbox(self, status: str) -> dict[str, Any]:
        """Wait until the sandbox has a status; return the sandbox."""
        eventually(lambda: self.sandbox()["status"] == status, deadline_seconds=300)
        return self.sandbox()

    def send(self, method: str, path: str, **options: Any) -> Any:
        """Send a request of the user, which must succeed; return the body of the response."""
        response = self.machine.namespace.call(lambda: self._request(method, path, options))
        assert response.is_success, f"{method} {path}: {response.status_code} {response.text}"
        return response.json()

    def _start(self, settings: dict[str, str]) -> None:
        self.send("POST", "/api/settings", json=settings)
        task = self.send("POST", CONVERSATIONS, params={"wait": 60}, json={"initial_message": _message("Begin.")})
        eventually(lambda: self._task(task["id"])["status"] in ("READY", "ERROR"), deadline_seconds=300)
        task = self._task(task["id"])
        assert task["status"] == "READY", task
        self.id, self.sandbox_id = task["app_conversation_id"], task["sandbox_id"]

    def _request(self, method: str, path: str, options: dict[str, Any]) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.key}"}
        return http.request(method, f"http://{self.machine.address}:3000{path}", headers=headers, timeout=90, **options)

    def _task(self, task_id: str) -> dict[str, Any]:
        [task] = self.send("GET", f"{CONVERSATIONS}/start-tasks", params={"ids": task_id})
        found: dict[str, Any] = task
        return found

    def _await_answer(self, shown: str, began: float) -> None:
        self.said += 1
        eventually(lambda: self._responds() >= self.said, deadline_seconds=300, interval_seconds=0.5)
        lines = [text for event in self.events() if (text := _output(event))]
        assert lines[-1] == str(self.said), lines
        self.transcript.add(f"({shown})", f"{COMMAND}\n{lines[-1]}", time.monotonic() - began)

    def _responds(self) -> int:
        return sum(answer_of(event) is not None for event in self.events())


def _message(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}], "run": True}


def _output(event: dict[str, Any]) -> str:
    """The output of a command."""
    if event.get("kind") != "ObservationEvent" or event.get("tool_name") != "terminal":
        return ""
    content = (event.get("observation") or {}).get("content") or []
    return str("".join(str(item.get("text", "")) for item in content)).strip()

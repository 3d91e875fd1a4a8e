"""Agent servers in their own containers, as the worker creates them, without the service.

`AW_TEST_SANDBOX_IMAGE` replaces the real image, so that the contract tests show what an upgrade would break.
`AW_AGENT_SERVER_VERSION=1.59.0 deploy/image/build next` builds such an image.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from deploy.demo.scripted_model import ScriptedModel
from shared.agent_server.errors import WrongServer
from shared.ids import new_id
from shared.models import Sandbox, SandboxSpec
from shared.users.settings import StoredSettings
from tests.factories import NODE_ID
from tests.services.engine import SANDBOX_IMAGE, docker_engine, name_installation
from tests.waiting import eventually
from worker.agent_server.client import AgentServer
from worker.conversations.agent_request import AgentInputs, build_request
from worker.sandboxes.container_spec import CONFIG_PATH, container_request, init_config

KEY, INIT_KEY = "the-session-key", "the-init-key"
# A boot takes 5 s of CPU time, on CPUs with other work.
BOOT_SECONDS = 240
FOLDER = "/workspace/project"
HELLO = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
# Read at import time, because each test removes the service's variables from its environment.
REAL_IMAGE = os.environ.get("AW_TEST_SANDBOX_IMAGE", SANDBOX_IMAGE)


@dataclass(frozen=True)
class TargetServer:
    """An agent server under test, which accepts `KEY`.

    Args:
        kind: `fake` (in memory), `tiny` (the tiny image) or `real` (the sandbox image).
        url: its URL.
        client: an HTTP client that reaches it.
    """

    kind: str
    url: str
    client: httpx.Client

    @property
    def server(self) -> AgentServer:
        """The worker's client of this agent server."""
        return AgentServer(self.url, KEY, self.client, lambda text: text)

    def request(self, method: str, path: str, key: str = KEY, **content: Any) -> httpx.Response:
        """Send a request below `/api`; return the response, whatever its status."""
        headers = {"X-Session-API-Key": key}
        return self.client.request(method, f"{self.url}/api{path}", headers=headers, timeout=60, **content)

    def list_events(self, conversation_id: str) -> list[dict[str, Any]]:
        """The conversation's stored events, oldest first."""
        params: dict[str, Any] = {"limit": 100, "sort_order": "TIMESTAMP"}
        found: list[dict[str, Any]] = []
        while True:
            page = self.request("GET", f"/conversations/{conversation_id}/events/search", params=params).json()
            found += page["items"]
            if not page["next_page_id"]:
                return found
            params["page_id"] = page["next_page_id"]

    def forget_conversations(self) -> None:
        """Delete all conversations: the server runs a few at a time, and those with the model `held` never end."""
        for found in self.request("GET", "/conversations/search", params={"limit": 100}).json()["items"]:
            assert self.request("DELETE", f"/conversations/{found['id']}").is_success


@dataclass(frozen=True)
class Initialization:
    """What a server that awaited deferred init has answered, before its init and after it.

    Args:
        routes: the statuses of a known and of an unknown route before the init.
        dormant: whether it awaited the init, before and after it.
        taken: whether it took its keys, with another init key, with its own, and with its own again; None: rejected.
    """

    routes: tuple[int, int]
    dormant: tuple[bool | None, bool | None]
    taken: tuple[bool | None, bool | None, bool | None]


def initialize(target: TargetServer, webhook_url: str) -> Initialization:
    """Let a server that awaits deferred init accept `KEY`."""
    server, config = target.server, init_config(KEY, node_id=NODE_ID, webhook_url=webhook_url)

    def take(key: str) -> bool | None:
        try:
            return server.initialize(key, config)
        except WrongServer:
            return None

    known, unknown = (target.client.get(f"{target.url}/api/{path}") for path in ("conversations/count", "nowhere"))
    server.warm_up()
    before, other, own = server.is_dormant(), take("another"), take(INIT_KEY)
    assert eventually(server.is_ready)
    dormant, taken = (before, server.is_dormant()), (other, own, take(INIT_KEY))
    return Initialization((known.status_code, unknown.status_code), dormant, taken)


def body_for(model: ScriptedModel, **inputs: Any) -> dict[str, Any]:
    """The body of a request that creates a conversation, with the model `held` unless `llm_model` names another."""
    values: dict[str, Any] = {"llm_model": "openai/held", "llm_base_url": model.base_url, "llm_api_key": "sk-1"}
    values |= inputs
    settings = StoredSettings(**{name: values.pop(name) for name in StoredSettings.model_fields if name in values})
    known: dict[str, Any] = {"conversation_id": new_id(), "working_dir": FOLDER, "settings": settings}
    return build_request(AgentInputs(**(known | values)))


@contextmanager
def booted(config: bytes, image: str = REAL_IMAGE, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Start a container; yield the URL at which its agent server will listen."""
    installation = name_installation()
    columns: dict[str, Any] = {"id": new_id(), "owner_id": new_id()}
    sandbox = Sandbox(**columns)
    spec = SandboxSpec(id=image, position=0, env=dict(environment or {}))
    with docker_engine(installation) as engine:
        request = container_request(sandbox, spec, installation=installation)
        engine.create(request)
        engine.put_file(request.name, CONFIG_PATH, config)
        engine.start(request.name)
        yield f"http://{engine.observe(request.name).address}:8000"

"""Workers' use of engines and agent servers, which the API does not access."""

import json
import subprocess
import sys
from typing import Any

from docker import APIClient

from shared.models import Sandbox, SandboxSpec
from shared.users.secrets import CustomSecret
from tests.services.directories import REPOSITORY
from worker.conversations.agent_request import gather_secrets, serialize_secrets
from worker.engine.docker_client import host_config
from worker.sandboxes.container_spec import container_request, deferred_init_config

COLUMNS: dict[str, Any] = {"id": "a" * 32, "owner_id": "b" * 32}


def test_defect_05_api_never_waits_for_an_engine() -> None:
    # A module that is not loaded can't be called, on the event loop or elsewhere.
    code = "import sys, api.__main__, api.app; sys.exit('docker' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, timeout=120, check=False)
    assert done.returncode == 0


def test_defect_10_no_port_is_published() -> None:
    spec = SandboxSpec(id="image:1", position=0, ports={"AGENT_SERVER": 8000, "VSCODE": 8001})
    request = container_request(Sandbox(**COLUMNS), spec, installation="home")
    api = APIClient(base_url="unix:///nowhere", version="1.44")
    try:
        config = host_config(api, request, {})
    finally:
        api.close()
    assert not config.get("PortBindings")


def test_defect_46_secrets_are_sent_as_values() -> None:
    # The agent server masks a lookup's headers when it stores the conversation, so that they would be unusable later.
    secrets = gather_secrets({"github": "t"}, {"STORED": CustomSecret("s", "what for")}, {"ASKED": "a"})
    assert {name: (entry["kind"], entry["value"]) for name, entry in serialize_secrets(secrets).items()} == {
        "GITHUB_TOKEN": ("StaticSecret", "t"),
        "STORED": ("StaticSecret", "s"),
        "ASKED": ("StaticSecret", "a"),
    }


def test_defect_50_server_awaiting_its_init_is_locked_and_has_its_origins() -> None:
    made = json.loads(deferred_init_config("its init key", origins=["https://page.example"]))
    assert (made["deferred_init"], made["secret_key"]) == (True, "its init key")
    # The server reads the allowed origins at boot only, so its initialization would be too late to set them.
    assert made["allow_cors_origins"] == ["https://page.example"]

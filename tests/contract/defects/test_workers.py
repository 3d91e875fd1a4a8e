"""What workers do with engines and agent servers, and what the API leaves to them."""

import json
import subprocess
import sys
from typing import Any

from docker import APIClient

from shared.models import Sandbox, SandboxSpec
from tests.services.directories import REPOSITORY
from worker.conversations.agent_secrets import ResolvedSecret, gather_secrets, on_the_wire
from worker.engine.docker_client import host_config
from worker.sandboxes.container_spec import container_request, dormant_config

COLUMNS: dict[str, Any] = {"id": "a" * 32, "owner_id": "b" * 32}


def test_defect_05_the_api_can_wait_for_no_engine() -> None:
    # What is not loaded can't be called, on the event loop or elsewhere.
    code = "import sys, api.__main__, api.app; sys.exit('docker' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, timeout=120, check=False)
    assert done.returncode == 0


def test_defect_10_the_engine_picks_the_ports() -> None:
    spec = SandboxSpec(id="image:1", position=0, ports={"AGENT_SERVER": 8000, "VSCODE": 8001})
    request = container_request(Sandbox(**COLUMNS), spec, installation="home", address="10.0.0.7")
    api = APIClient(base_url="unix:///nowhere", version="1.44")
    try:
        bindings = host_config(api, request)["PortBindings"]
    finally:
        api.close()
    assert bindings == {f"{port}/tcp": [{"HostIp": "10.0.0.7", "HostPort": ""}] for port in (8000, 8001)}


def test_defect_46_secrets_are_handed_out_as_values() -> None:
    # A lookup's headers would be masked where the agent server stores the conversation, and of no use after that.
    given = gather_secrets({"github": "t"}, {"STORED": ResolvedSecret("s", "what for")}, {"ASKED": "a"})
    assert {name: (entry["kind"], entry["value"]) for name, entry in on_the_wire(given).items()} == {
        "GITHUB_TOKEN": ("StaticSecret", "t"),
        "STORED": ("StaticSecret", "s"),
        "ASKED": ("StaticSecret", "a"),
    }


def test_defect_50_a_server_that_waits_for_its_user_is_locked_and_knows_its_pages() -> None:
    made = json.loads(dormant_config("its boot key", origins=["https://page.example"]))
    assert (made["deferred_init"], made["secret_key"]) == (True, "its boot key")
    # Read at boot alone: an initialization would come too late.
    assert made["allow_cors_origins"] == ["https://page.example"]

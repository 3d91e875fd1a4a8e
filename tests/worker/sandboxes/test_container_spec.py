"""The request that creates a sandbox's container, and its agent server's configuration file."""

import json
from typing import Any

from shared.conversations.start import MAX_CONVERSATIONS
from shared.conversations.webhook_ingest import NODE_HEADER
from shared.models import Sandbox, SandboxSpec
from worker.engine.docker_engine import INSTALLATION_LABEL, SANDBOX_LABEL
from worker.engine.protocol import ContainerRequest, ContainerState, ContainerStatus
from worker.sandboxes.container_spec import (
    CONFIG_ENV,
    CONFIG_PATH,
    config_path,
    container_name,
    container_request,
    deferred_init_config,
    exposed_urls,
    server_config,
)

KEY = "aw_the-session-key"
COLUMNS: dict[str, Any] = {
    "id": "a" * 32,
    "owner_id": "b" * 32,
    "session_key": "its ciphertext",
    "session_key_digest": "its digest",
}
SANDBOX = Sandbox(**COLUMNS)


def request(**columns: Any) -> ContainerRequest:
    spec = SandboxSpec(**{"id": "image:1", "position": 0, **columns})
    return container_request(SANDBOX, spec, installation="home")


def config(key: str = KEY, origins: list[str] | None = None) -> dict[str, Any]:
    text = server_config(key, node_id="node-a", webhook_url="http://api/api/v1/webhooks", origins=origins or [])
    read: dict[str, Any] = json.loads(text)
    return read


class TestRequest:
    def test_container_is_named_and_labelled_for_its_sandbox(self) -> None:
        made = request()
        assert made.name == container_name(SANDBOX.id) == f"aw-{SANDBOX.id}"
        assert made.labels[INSTALLATION_LABEL] == "home"
        assert made.labels[SANDBOX_LABEL] == SANDBOX.id
        assert SANDBOX.owner_id in made.labels.values()

    def test_container_without_an_owner_has_string_labels(self) -> None:
        pooled = Sandbox(**COLUMNS | {"owner_id": None})
        made = container_request(pooled, SandboxSpec(id="i", position=0), installation="home")
        assert all(isinstance(value, str) for value in made.labels.values())

    def test_container_has_the_spec_s_values(self) -> None:
        limits = {"memory_bytes": 2**30, "cpus": 0.5, "pids": 99, "capabilities": ["CHOWN"], "runtime": "runsc"}
        made = request(command=["serve"], working_dir="/w", **limits)
        assert (made.image, made.command, made.working_dir) == ("image:1", ["serve"], "/w")
        assert {name: getattr(made, name) for name in limits} == limits

    def test_environment_has_the_ports_and_the_path_of_the_configuration(self) -> None:
        made = request(ports={"AGENT_SERVER": 8000, "WORKER_1": 8011})
        assert made.env["WORKER_1"] == "8011"
        assert made.env[CONFIG_ENV] == CONFIG_PATH
        assert made.env["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"

    def test_environment_of_the_spec_takes_precedence_except_for_the_configuration_path(self) -> None:
        env = {"WORKER_1": "9", "LITELLM_LOCAL_MODEL_COST_MAP": "False", CONFIG_ENV: "/tmp/mine", "MORE": "1"}
        made = request(ports={"WORKER_1": 8011}, env=env)
        assert made.env == env | {CONFIG_ENV: CONFIG_PATH}

    def test_disk_size_of_the_spec_takes_precedence_over_the_setting(self) -> None:
        for disk, size in ((None, 7), (0, 0), (9, 9)):
            spec = SandboxSpec(id="i", position=0, disk_bytes=disk)
            made = container_request(SANDBOX, spec, installation="home", disk_bytes=7)
            assert made.disk_bytes == size

    def test_containers_of_former_versions_keep_the_path_of_their_configuration(self) -> None:
        created = ContainerStatus(ContainerState.CREATED, labels=request().labels)
        assert config_path(created) == CONFIG_PATH
        assert config_path(ContainerStatus(ContainerState.EXITED)) == "/etc/agent-workspace/server.json"

    def test_container_shows_no_secret(self) -> None:
        assert SANDBOX.session_key not in repr(request())
        assert SANDBOX.session_key_digest not in repr(request())


class TestConfiguration:
    def test_configuration_has_the_key_and_the_webhooks(self) -> None:
        made = config(origins=["http://web"])
        assert made["session_api_keys"] == [KEY]
        assert made["allow_cors_origins"] == ["http://web"]
        [webhook] = made["webhooks"]
        assert (webhook["base_url"], webhook["headers"]) == ("http://api/api/v1/webhooks", {NODE_HEADER: "node-a"})
        assert made["lease_ttl_seconds"] == 0

    def test_configuration_has_folders_on_the_volume(self) -> None:
        made = config()
        assert made["conversations_path"].startswith("/workspace/")
        assert made["bash_events_dir"].startswith("/workspace/")

    def test_configuration_lets_the_agents_of_all_grouped_conversations_run_at_once(self) -> None:
        warm = json.loads(deferred_init_config("its init key", origins=[]))
        for made in (config(), warm):
            assert made["max_concurrent_runs"] == MAX_CONVERSATIONS

    def test_configuration_has_a_secret_key_that_is_stable_and_its_own(self) -> None:
        assert config()["secret_key"] == config()["secret_key"]
        assert config("another")["secret_key"] != config()["secret_key"]
        assert KEY not in config()["secret_key"]
        assert len(config()["secret_key"]) >= 32

    def test_retry_delay_is_whole_seconds(self) -> None:
        # The agent server refuses to boot on a fraction.
        assert isinstance(config()["webhooks"][0]["retry_delay"], int)


def test_urls_are_those_of_the_spec_s_ports_at_the_door() -> None:
    spec = SandboxSpec(id="image:1", position=0, ports={"AGENT_SERVER": 8000, "VSCODE": 8001})
    observed = ContainerStatus(ContainerState.RUNNING, address="10.0.0.7")
    assert exposed_urls(spec, observed, "https://node.example.org:3001") == [
        {"name": "AGENT_SERVER", "url": "https://node.example.org:3001/10.0.0.7/8000", "port": 8000},
        {"name": "VSCODE", "url": "https://node.example.org:3001/10.0.0.7/8001", "port": 8001},
    ]
    assert exposed_urls(spec, ContainerStatus(ContainerState.EXITED), "https://node.example.org:3001") == []

"""The stages of a start with the real agent server: failures, a paused sandbox, and the user's settings.

`test_main_job` starts a conversation with a repository.
"""

import pytest

from deploy.demo.scripted_model import ScriptedModel
from tests.integration.conftest import TOKEN
from tests.integration.test_main_job import REQUEST, SECRET, conversation, store_settings, store_token
from tests.services import http
from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.git_http import GitServer
from tests.services.private_engine import PrivateEngine
from tests.waiting import eventually


@pytest.fixture
def configured(alice: Client, model: ScriptedModel, git_server: GitServer) -> Client:
    """Alice, with settings and a token for the git server."""
    store_settings(alice, model)
    store_token(alice, git_server)
    return alice


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
class TestStarts:
    """Starts on SQLite; other tests cover the store on both databases."""

    @pytest.mark.nightly  # tests of the worker's clones cover this for each change, with git and a shell
    @pytest.mark.parametrize(
        ("repository", "reason", "words"),
        [("acme/nowhere", "clone_failed", "acme/nowhere"), ("acme/broken", "setup_script_failed", "no such luck")],
    )
    def test_failed_start_has_a_reason_and_leaves_nothing(
        self, configured: Client, service: Deployment, engine: PrivateEngine, repository: str, reason: str, words: str
    ) -> None:
        request = {**REQUEST, "selected_repository": repository, "git_provider": "github"}
        task = configured.await_start(configured.start_conversation(**request), status="ERROR")
        assert task["reason"] == reason
        assert words in str(task["detail"])
        assert TOKEN not in str(task) + service.log()
        eventually(lambda: engine.containers() == engine.volumes() == [])

    @pytest.mark.nightly  # tests of starts cover this for each change, with a fake agent server
    def test_paused_sandbox_of_the_request_is_resumed(self, configured: Client, engine: PrivateEngine) -> None:
        first = configured.await_start(configured.start_conversation(**REQUEST))
        sandbox_id = str(first["sandbox_id"])
        eventually(lambda: conversation(configured, first).get("execution_status") == "finished")
        assert configured.post(f"/api/v1/sandboxes/{sandbox_id}/pause").status_code == 200
        configured.await_sandbox(sandbox_id, "PAUSED")
        second = configured.await_start(configured.start_conversation(**REQUEST, sandbox_id=sandbox_id))
        assert second["sandbox_id"] == sandbox_id
        eventually(lambda: conversation(configured, second).get("execution_status") == "finished")
        assert engine.containers() == [f"aw-{sandbox_id}"]

    @pytest.mark.nightly  # `test_secrets` and tests of starts cover this for each change
    def test_secrets_and_settings_reach_the_agent(self, configured: Client) -> None:
        changes = {"max_iterations": 77, "confirmation_mode": True, "security_analyzer": "llm"}
        assert configured.post("/api/settings", json=changes).status_code == 200
        task = configured.await_start(configured.start_conversation(secrets={"ASKED_KEY": "for this one alone"}))
        shown = conversation(configured, task)
        headers = {"X-Session-API-Key": shown["session_api_key"]}
        known = http.get(shown["conversation_url"], headers=headers).json()
        assert known["max_iterations"] == 77
        assert known["confirmation_policy"]["kind"] == "ConfirmRisky"
        assert known["agent"]["llm"]["model"] == "openai/greeter"
        root = shown["conversation_url"].split("/api/")[0]
        command = {"command": "grep -rhoE 'DEPLOY_KEY|ASKED_KEY|GITHUB_TOKEN' /workspace/conversations | sort -u"}
        response = http.post(f"{root}/api/bash/execute_bash_command", json=command, headers=headers).json()
        assert response["stdout"].split() == ["ASKED_KEY", "DEPLOY_KEY", "GITHUB_TOKEN"]
        assert SECRET not in str(known)

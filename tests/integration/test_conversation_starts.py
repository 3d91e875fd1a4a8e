"""The stages of a start with the real agent server: a repository with a token, its scripts, and the user's settings."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.demo.scripted_model import ScriptedModel
from tests.integration.test_main_job import REQUEST, SECRET, store_settings
from tests.services import http
from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.git_http import GitServer, running_git_server
from tests.services.private_engine import PrivateEngine
from tests.waiting import eventually

TOKEN = "git-token-that-must-not-leak"
PROJECT = "/workspace/project/app"
FILES = {
    "README.md": "An application.\n",
    ".openhands/setup.sh": "echo prepared > prepared.txt\n",
    ".openhands/pre-commit.sh": "exit 0\n",
}


@pytest.fixture
def git_server(tmp_path: Path, engine: PrivateEngine) -> Iterator[GitServer]:
    with running_git_server(tmp_path, password=TOKEN, address=engine.gateway) as server:
        server.add_repository("acme/app", [FILES])
        server.add_repository("acme/broken", [{".openhands/setup.sh": "echo no such luck >&2; exit 7\n"}])
        yield server


@pytest.fixture
def configured(alice: Client, model: ScriptedModel, git_server: GitServer) -> Client:
    """Alice, with settings and a token for the git server."""
    store_settings(alice, model)
    token = {"provider_tokens": {"github": {"token": TOKEN, "host": git_server.url}}}
    assert alice.post("/api/add-git-providers", json=token).status_code == 200
    return alice


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
class TestStarts:
    """Starts on SQLite; other tests cover the store on both databases."""

    def test_repository_is_cloned_and_its_token_is_not_stored(
        self, configured: Client, service: Deployment, engine: PrivateEngine
    ) -> None:
        request = {**REQUEST, "selected_repository": "acme/app", "git_provider": "github"}
        requested = configured.start_conversation(**request, title="Mine", public=True)
        task = configured.await_start(requested)
        container = f"aw-{task['sandbox_id']}"

        def inside(command: str) -> str:
            return engine.docker(
                "exec", "--user", "10001", "--workdir", PROJECT, container, "sh", "-c", command
            ).strip()

        assert inside("cat prepared.txt") == "prepared"
        assert inside("git config user.name; git config user.email") == "Alice\nalice@example.com"
        assert "pre-commit.sh" in inside("cat .git/hooks/pre-commit")
        assert inside("git log --format=%s") == "commit 1"
        eventually(lambda: conversation(configured, task).get("execution_status") == "finished")
        shown = conversation(configured, task)
        assert (shown["title"], shown["public"], shown["selected_repository"]) == ("Mine", True, "acme/app")
        assert inside("cat greeting.txt")
        assert inside("git push --quiet origin HEAD:refs/heads/made && git ls-remote origin refs/heads/made")
        written, mounts = written_places(engine, container)

        def found(text: str) -> str:
            files, folders = " ".join(written), " ".join(mounts)
            return inside(f"grep -IlsD skip -d skip {text} {files} /dev/null; grep -rIlsD skip {text} {folders}; true")

        assert f"{PROJECT}/prepared.txt" in found("prepared").split()
        assert found(TOKEN) == ""
        assert TOKEN not in engine.docker("logs", container) + engine.docker("inspect", container) + service.log()

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


def written_places(engine: PrivateEngine, container: str) -> tuple[list[str], list[str]]:
    """The files of a container's root that differ from its image, and its mounts: all places with contents of its own.

    A search of the image itself would read a gigabyte that existed before the container.
    """
    changed = [line.split(maxsplit=1)[1] for line in engine.docker("diff", container).splitlines()]
    mounted = [line.split()[1] for line in engine.docker("exec", container, "cat", "/proc/mounts").splitlines()]
    return changed, [path for path in mounted if path != "/" and not path.startswith(("/proc", "/sys"))]


def conversation(client: Client, task: dict[str, object]) -> dict[str, Any]:
    found: Any = client.read("/api/v1/app-conversations", ids=task["app_conversation_id"])
    return found[0] or {}

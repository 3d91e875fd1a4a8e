"""The body of a start: accepted, completed, masked and refused values."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlmodel import select

from shared.crypto import Vault
from shared.db.database import Database
from shared.models import Node, Sandbox, SandboxSpec, StartTask
from shared.queue.jobs import StartConversation, StartSandbox
from shared.users import settings_store
from tests.api.routes.v1.conversation_starts.requests import PATH, _all_sandboxes, _get, _start, _status, _task
from tests.doubles import RecordingPublisher
from tests.factories import (
    VAULT,
    ApiUser,
    make_spec,
)

UNUSABLE_SECRETS: list[Any] = [
    {f"S{number}": "x" for number in range(51)},
    {"N" * 257: "x"},
    {"no-dashes": "x"},
    {"1ST": "x"},
    {"": "x"},
    {"AGENT_SERVER": "x"},
    {"VSCODE": "x"},
    {"LLM_API_KEY": "x"},
    {"OH_WEBHOOKS_0_BASE_URL": "x"},
    {"BIG": "x" * (64 * 1024 + 1)},
    {"NUMBER": 1},
    ["LIST"],
]


UNSAFE_REPOSITORIES: list[Any] = [
    "owner",
    "owner/",
    "/repo",
    "owner//repo",
    "owner/../repo",
    "owner/repo;id",
    "owner/repo&id",
    "owner/repo|id",
    "owner/$(id)",
    "owner/`id`",
    "owner/repo\n",
    "owner/ repo",
    "owner/repo ",
    "owner /repo",
    "owner/re\tpo",
    "-owner/repo",
    "owner/-repo",
    "https://github.com/owner/repo",
    "owner/" + "r" * 500,
]


BAD_BRANCHES: list[Any] = [
    "a b",
    "a..b",
    "-a",
    "/a",
    "a/",
    "a//b",
    ".a",
    "a/.b",
    "a.lock",
    "a.",
    "@",
    "a@{1}",
    "a~",
    "a\\b",
    "a\n",
]


GOOD_REPOSITORIES: list[Any] = ["owner/repo", "owner/.github", "o/r.js", "~me/repo", "a/b/c/d", "acme/My Team/My app"]


@pytest.mark.usefixtures("spec")
class TestStart:
    def test_empty_request_starts_a_conversation(
        self,
        client: TestClient,
        user: ApiUser,
        node: Node,
        spec: SandboxSpec,
        database: Database,
        publisher: RecordingPublisher,
    ) -> None:
        shown = _start(client, user)
        assert shown["status"] == "WORKING"
        assert shown["created_by_user_id"] == user.id
        for name in ("detail", "reason", "app_conversation_id", "sandbox_id", "agent_server_url"):
            assert shown[name] is None
        task, [sandbox] = _task(database, shown["id"]), _all_sandboxes(database)
        assert (task.sandbox_id, task.made_sandbox) == (sandbox.id, True)
        assert (sandbox.spec_id, sandbox.owner_id, sandbox.node_id) == (spec.id, user.id, node.id)
        assert task.due_at is not None
        assert publisher.jobs == [StartSandbox(sandbox.id, node.id), StartConversation(task.id, node.id)]

    def test_spec_of_the_settings_is_used_while_it_exists(
        self, client: TestClient, user: ApiUser, spec: SandboxSpec, database: Database
    ) -> None:
        other = make_spec(database, "registry.example.com/other:1", position=1)
        for named, expected in ((other.id, other.id), ("gone:1", spec.id)):
            with database.transaction() as session:
                settings_store.change(session, VAULT, user.id, {"default_sandbox_spec_id": named})
            task = _task(database, _start(client, user)["id"])
            with database.reading() as session:
                assert session.get_one(Sandbox, task.sandbox_id).spec_id == expected

    def test_request_is_echoed_with_all_its_fields(self, client: TestClient, user: ApiUser) -> None:
        conversation_id = "11111111-2222-4333-8444-555555555555"
        requested = {
            "conversation_id": conversation_id,
            "initial_message": {"role": "user", "content": [{"type": "text", "text": "Hi"}], "run": True},
            "system_message_suffix": "Be brief.",
            "llm_model": "openai/other",
            "agent_profile_id": "default",
            "selected_repository": "group/sub.group/project",
            "selected_branch": "feature/x-1",
            "git_provider": "gitlab",
            "title": "A title",
            "trigger": "gui",
            "pr_number": [7],
            "agent_type": "plan",
            "public": True,
            "plugins": [{"source": "github:o/p", "ref": "v1", "repo_path": None, "parameters": {"a": [1, "b"]}}],
        }
        request = _start(client, user, **requested, unknown="ignored")["request"]
        message = {"role": "user", "run": True, "content": [{"type": "text", "text": "Hi", "cache_prompt": False}]}
        nothing = ("sandbox_id", "processors", "suggested_task", "parent_conversation_id", "secrets")
        assert request == requested | {"initial_message": message} | dict.fromkeys(nothing)

    def test_blank_fields_are_unset(self, client: TestClient, user: ApiUser) -> None:
        blank = dict.fromkeys(("sandbox_id", "llm_model", "selected_repository", "selected_branch", "title"), "")
        request = _start(client, user, **blank, processors=[{"kind": "whatever"}])["request"]
        assert all(request[name] is None for name in (*blank, "processors"))

    def test_head_is_no_branch(self, client: TestClient, user: ApiUser) -> None:
        """The CLI sends it from a clone that is on no branch, and git can't clone it."""
        request = _start(client, user, selected_repository="o/r", selected_branch="HEAD")["request"]
        assert (request["selected_repository"], request["selected_branch"]) == ("o/r", None)

    def test_secrets_are_masked_and_encrypted(
        self, client: TestClient, user: ApiUser, database: Database, vault: Vault
    ) -> None:
        shown = _start(client, user, secrets={"DEPLOY_KEY": "s3cr3t-value"})
        assert shown["request"]["secrets"] == {"DEPLOY_KEY": "*" * 10}
        task = _task(database, shown["id"])
        assert "s3cr3t" not in str(task.request)
        assert task.secrets is not None
        assert vault.decrypt(task.secrets) == '{"DEPLOY_KEY": "s3cr3t-value"}'
        assert "s3cr3t" not in str(_get(client, user, "/start-tasks", ids=shown["id"]))

    def test_long_title_is_truncated(self, client: TestClient, user: ApiUser) -> None:
        """Web clients send a conversation's instructions as its title, and V1 ignores it."""
        assert _start(client, user, title="é" * 501)["request"]["title"] == "é" * 500

    @pytest.mark.parametrize("role", ["system", "assistant", "tool"])
    def test_first_message_of_another_role_is_refused(
        self, client: TestClient, user: ApiUser, database: Database, role: str
    ) -> None:
        """The agent server fails at such a message when it has created the conversation, which stays without it."""
        message = {"role": role, "content": [{"text": "Hi"}]}
        response = client.post(PATH, json={"initial_message": message}, headers=user.headers)
        assert response.status_code == 422
        [entry] = response.json()["detail"]
        assert (entry["loc"], "'user'" in entry["msg"]) == (["body", "initial_message", "role"], True)
        with database.reading() as session:
            assert session.exec(select(StartTask)).all() == []

    def test_unusable_secrets_are_refused(self, client: TestClient, user: ApiUser) -> None:
        for secrets in UNUSABLE_SECRETS:
            assert _status(client, user, secrets=secrets) == 422, str(secrets)[:60]

    def test_largest_secrets_are_accepted(self, client: TestClient, user: ApiUser) -> None:
        secrets = {f"{'N' * 253}_{number:02}": "x" for number in range(49)} | {"BIG": "x" * 64 * 1024}
        assert len(_start(client, user, secrets=secrets)["request"]["secrets"]) == 50

    def test_error_does_not_repeat_a_secret(self, client: TestClient, user: ApiUser) -> None:
        for secrets in ({"LLM_API_KEY": "s3cr3t-value", "pasted-s3cr3t": "x"}, {"pasted-s3cr3t": 1}):
            requested = {"secrets": secrets, "title": ["s3cr3t"]}
            response = client.post(PATH, json=requested, headers=user.headers)
            assert response.status_code == 422
            assert "s3cr3t" not in response.text

    def test_unsafe_repositories_are_refused(self, client: TestClient, user: ApiUser) -> None:
        for repository in UNSAFE_REPOSITORIES:
            assert _status(client, user, selected_repository=repository) == 422, repository

    def test_invalid_branches_are_refused(self, client: TestClient, user: ApiUser) -> None:
        for branch in BAD_BRANCHES:
            assert _status(client, user, selected_repository="o/r", selected_branch=branch) == 422, branch

    def test_valid_repositories_are_accepted(self, client: TestClient, user: ApiUser) -> None:
        for name in GOOD_REPOSITORIES:
            assert _start(client, user, selected_repository=name, selected_branch="a/b_c.d#1")["status"] == "WORKING"

    def test_start_without_a_model_fails_immediately(
        self, client: TestClient, other_user: ApiUser, database: Database, publisher: RecordingPublisher
    ) -> None:
        shown = _start(client, other_user, secrets={"A": "b"})
        assert (shown["status"], shown["reason"]) == ("ERROR", "llm_key_missing")
        assert "/api/settings" in shown["detail"]
        assert _all_sandboxes(database) == []
        assert publisher.jobs == []
        task = _task(database, shown["id"])
        assert (task.due_at, task.secrets) == (None, None)

    @pytest.mark.parametrize(
        "stored",
        [{"llm_base_url": "http://localhost:1/v1"}, {"llm_model": "bedrock/claude"}, {"llm_model": "ollama/qwen"}],
    )
    def test_model_that_needs_no_key_is_accepted(
        self, client: TestClient, other_user: ApiUser, database: Database, stored: dict[str, str]
    ) -> None:
        with database.transaction() as session:
            settings_store.change(session, VAULT, other_user.id, stored)
        assert _start(client, other_user)["status"] == "WORKING"

    def test_model_of_the_request_determines_whether_a_key_is_needed(
        self, client: TestClient, other_user: ApiUser, database: Database
    ) -> None:
        with database.transaction() as session:
            settings_store.change(session, VAULT, other_user.id, {"llm_model": "openai/gpt"})
        assert _start(client, other_user, llm_model="vertex_ai/gemini")["status"] == "WORKING"
        assert _start(client, other_user)["reason"] == "llm_key_missing"

    def test_suggested_task_becomes_a_message(self, client: TestClient, user: ApiUser) -> None:
        task = {
            "git_provider": "github",
            "task_type": "FAILING_CHECKS",
            "repo": "o/r",
            "issue_number": 12,
            "title": "It fails",
        }
        request = _start(client, user, suggested_task=task)["request"]
        text = request["initial_message"]["content"][0]["text"]
        assert "#12" in text
        assert "It fails" in text
        expected = {"trigger": "suggested_task", "selected_repository": "o/r", "git_provider": "github"}
        assert expected.items() <= request.items()
        message = {"content": [{"text": "Hi"}]}
        assert _status(client, user, suggested_task=task, initial_message=message) == 422

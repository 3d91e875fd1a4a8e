"""The inputs of a start: settings, secrets, tokens and the request, read in one transaction."""

from typing import Any

import pytest

from shared.crypto import Vault
from shared.db.database import Database
from shared.models import Sandbox, SandboxSpec
from shared.users import secrets
from tests.factories import ApiUser, make_sandbox
from tests.fakes.engine import IMAGE
from tests.worker.scenarios import (
    ASKED,
    LLM_KEY,
    MCP,
    MESSAGE,
    SEARCH_KEY,
    SECRETS,
    STORED,
    TOKEN,
    change,
    configure,
    request_start,
    store_settings,
    task_of,
)
from worker.context import WorkerContext
from worker.conversations.start_inputs import StartInputs, load_inputs


@pytest.fixture
def sandbox(context: WorkerContext, user: ApiUser) -> Sandbox:
    configure(context, user)
    return make_sandbox(context.database, user, spec_id=IMAGE)


def loaded(context: WorkerContext, user: ApiUser, sandbox: Sandbox, **request: Any) -> StartInputs:
    task_id = request_start(context, user, sandbox.id, **request)
    return load_inputs(context, task_of(context, task_id), sandbox)


def store_tokens(database: Database, vault: Vault, user: ApiUser, entries: dict[str, dict[str, Any]]) -> None:
    with database.transaction() as session:
        secrets.put_provider_tokens(session, vault, user.id, entries)


def test_settings_become_inputs(context: WorkerContext, user: ApiUser, sandbox: Sandbox) -> None:
    found = loaded(context, user, sandbox)
    assert (found.agent.settings.llm_model, found.agent.settings.llm_api_key) == ("openai/demo", LLM_KEY)
    assert (found.agent.settings.search_api_key, found.max_budget) == (SEARCH_KEY, 2.5)
    assert found.agent.settings.mcp_config
    assert found.agent.settings.mcp_config["shttp_servers"] == MCP["shttp_servers"]
    assert (found.project.author, found.project.address) == ("Alice", "alice@example.org")
    assert found.agent.user_id == user.id


def test_secrets_of_each_kind_become_inputs(context: WorkerContext, user: ApiUser, sandbox: Sandbox) -> None:
    found = loaded(context, user, sandbox)
    assert {name: secret.value for name, secret in found.agent.secrets.items()} == {"STORED": STORED}
    assert found.agent.provider_tokens == {"github": TOKEN}
    assert found.agent.requested_secrets == {"ASKED": ASKED}


def test_secrets_are_shown_by_no_repr_and_hidden_in_any_text(
    context: WorkerContext, user: ApiUser, sandbox: Sandbox
) -> None:
    found = loaded(context, user, sandbox, selected_repository="acme/app")
    shown = repr(found) + found.redact(" ".join(SECRETS))
    assert [secret for secret in SECRETS if secret in shown] == []


def test_request_becomes_inputs(context: WorkerContext, user: ApiUser, sandbox: Sandbox) -> None:
    plugins = [{"source": "github:acme/plugin"}]
    found = loaded(
        context,
        user,
        sandbox,
        llm_model="openai/another",
        system_message_suffix="Be brief.",
        agent_type="plan",
        title="A title",
        plugins=plugins,
    )
    assert (found.agent.requested_model, found.agent.system_message_suffix) == ("openai/another", "Be brief.")
    assert (found.agent.agent_type, found.agent.title, found.agent.plugins) == ("plan", "A title", plugins)
    assert found.agent.initial_message == MESSAGE


def test_inputs_of_another_user_are_not_read(
    context: WorkerContext, other_user: ApiUser, sandbox: Sandbox, user: ApiUser
) -> None:
    task = task_of(context, request_start(context, user, sandbox.id))
    task.owner_id = other_user.id
    found = load_inputs(context, task, sandbox)
    assert (found.agent.settings.llm_api_key, found.agent.secrets, found.agent.provider_tokens) == (None, {}, {})


def test_working_dir_is_the_spec_s_or_the_clone_in_it(context: WorkerContext, user: ApiUser, sandbox: Sandbox) -> None:
    change(context, SandboxSpec, IMAGE, working_dir="/workspace/elsewhere")
    plain, cloned = loaded(context, user, sandbox), loaded(context, user, sandbox, selected_repository="acme/app")
    assert plain.agent.working_dir == plain.project.folder == "/workspace/elsewhere"
    assert cloned.agent.working_dir == cloned.project.folder == "/workspace/elsewhere/app"
    assert plain.project.repository is None


def test_grouped_conversations_have_folders_of_their_own(
    context: WorkerContext, user: ApiUser, sandbox: Sandbox
) -> None:
    alone = task_of(context, request_start(context, user, sandbox.id))
    store_settings(context, user, sandbox_grouping_strategy="ADD_TO_ANY")
    grouped = task_of(context, request_start(context, user, sandbox.id, selected_repository="acme/app"))
    store_settings(context, user, sandbox_grouping_strategy="NO_GROUPING")
    # The folder is chosen at the time of the request: if it changed during a start, the start would not find its clone.
    assert load_inputs(context, alone, sandbox).project.folder == "/workspace/project"
    folder = f"/workspace/project/{grouped.conversation_id}"
    assert load_inputs(context, grouped, sandbox).project.working_dir == folder
    assert load_inputs(context, grouped, sandbox).agent.working_dir == f"{folder}/app"


def without_tokens(context: WorkerContext, user: ApiUser) -> Sandbox:
    """Configure a user without tokens of git providers; their sandbox."""
    configure(context, user)
    with context.database.transaction() as session:
        for token in secrets._tokens(session, user.id):
            session.delete(token)
    return make_sandbox(context.database, user, spec_id=IMAGE)


class TestRepository:
    def test_named_provider_of_a_repository_is_used(
        self, context: WorkerContext, user: ApiUser, sandbox: Sandbox, vault: Vault
    ) -> None:
        store_tokens(context.database, vault, user, {"gitlab": {"token": "glpat-1", "host": "git.example.org"}})
        requested = {"selected_repository": "acme/app", "git_provider": "gitlab", "selected_branch": "next"}
        found = loaded(context, user, sandbox, **requested).project.repository
        assert found
        assert (found.provider, found.token, found.host, found.branch) == (
            "gitlab",
            "glpat-1",
            "git.example.org",
            "next",
        )

    def test_only_provider_with_a_token_is_used(
        self, context: WorkerContext, other_user: ApiUser, sandbox: Sandbox, vault: Vault
    ) -> None:
        mine = without_tokens(context, other_user)
        store_tokens(context.database, vault, other_user, {"forgejo": {"token": "f-1"}})
        found = loaded(context, other_user, mine, selected_repository="acme/app").project.repository
        assert found
        assert (found.provider, found.token) == ("forgejo", "f-1")

    def test_providers_with_tokens_are_tried_with_github_first(
        self, context: WorkerContext, user: ApiUser, sandbox: Sandbox, vault: Vault
    ) -> None:
        others = {"gitlab": {"token": "glpat-1"}, "bitbucket": {"token": "b-1"}, "forgejo": {"host": "git.example.org"}}
        store_tokens(context.database, vault, user, others)
        project = loaded(context, user, sandbox, selected_repository="acme/app").project
        assert project.repository
        found = [project.repository, *project.alternatives]
        tokens = [(each.provider, each.token) for each in found]
        assert tokens == [("github", TOKEN), ("bitbucket", "b-1"), ("gitlab", "glpat-1")]

    def test_github_is_used_without_tokens(self, context: WorkerContext, other_user: ApiUser, sandbox: Sandbox) -> None:
        mine = without_tokens(context, other_user)
        project = loaded(context, other_user, mine, selected_repository="acme/app").project
        assert project.repository
        assert (project.repository.provider, project.repository.token, project.alternatives) == ("github", None, [])

    def test_named_provider_without_a_token_is_used(
        self, context: WorkerContext, user: ApiUser, sandbox: Sandbox
    ) -> None:
        requested = {"selected_repository": "acme/app", "git_provider": "bitbucket"}
        found = loaded(context, user, sandbox, **requested).project.repository
        assert found
        assert (found.provider, found.token, found.host) == ("bitbucket", None, None)

"""The inputs of a conversation's start: the sandbox, the request, and the owner's settings, secrets and tokens."""

import json
from dataclasses import dataclass, replace
from typing import Any

from shared.conversations import queries as conversation_queries
from shared.conversations.webhook_reports import MAX_MODEL_LENGTH
from shared.json_documents import clean_text
from shared.models import Conversation, Sandbox, SandboxSpec, StartTask
from shared.redaction import Redact, redacting
from shared.states import PAUSING, Desired, Reason, Status
from shared.users import secrets, settings_store
from shared.users.llm_profiles import Llm
from shared.users.secrets import CustomSecret, ProviderCredential
from shared.users.settings import StoredSettings
from shared.users.settings_v1 import with_stored_key
from worker.context import WorkerContext
from worker.conversations.agent_request import AgentInputs, secret_values
from worker.workspace.git_remotes import GitRepository, Logins, list_providers
from worker.workspace.setup import Project, ProjectContents

DEFAULT_PROVIDER = "github"
Request = dict[str, Any]


class StartFailed(Exception):
    """The start can't succeed."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True)
class StartInputs:
    """All inputs of a start, in clear text; a repr shows no secret."""

    agent: AgentInputs
    project: Project
    redact: Redact
    max_budget: float | None
    sandbox_id: str
    logins: Logins

    def conversation(self, task: StartTask, contents: ProjectContents) -> Conversation:
        """The conversation's row, unlisted."""
        request, title = task.request, self.agent.title
        return Conversation(
            id=task.conversation_id,
            owner_id=task.owner_id,
            sandbox_id=self.sandbox_id,
            parent_id=request.get("parent_conversation_id"),
            listed=False,
            title=title or conversation_queries.default_title(task.conversation_id),
            title_settled=title is not None,
            public=request.get("public"),
            selected_repository=request.get("selected_repository"),
            selected_branch=contents.branch if request.get("keeps_branch") else request.get("selected_branch"),
            git_provider=request.get("git_provider") or contents.provider,
            trigger=request.get("trigger"),
            pr_number=request.get("pr_number") or [],
            # Settings from before the max length may have a longer name.
            llm_model=clean_text(self.agent.requested_model or self.agent.settings.llm_model, MAX_MODEL_LENGTH),
            max_budget=self.max_budget,
            working_dir=self.agent.working_dir,
        )


def check_sandbox(sandbox: Sandbox | None) -> Sandbox:
    """The sandbox of a start, if it runs or starts.

    Raises:
        StartFailed: the sandbox does neither.
    """
    if sandbox is not None and sandbox.desired_reason == Reason.ALREADY_USED:
        detail = "the warm sandbox that was claimed for it is in use already: start the conversation again"
        raise StartFailed(Reason.SANDBOX_FAILED, f"{sandbox.desired_reason}: {detail}")
    if sandbox is None or sandbox.desired == Desired.DELETED:
        raise StartFailed(Reason.SANDBOX_DELETED, "the sandbox was deleted before the conversation began")
    is_observed = sandbox.generation == sandbox.observed_generation
    is_lost = sandbox.reason == Reason.NODE_LOST  # a start does not wait for the node's return
    if (is_observed or is_lost) and sandbox.status == Status.ERROR:
        raise StartFailed(Reason.SANDBOX_FAILED, f"{sandbox.reason}: {sandbox.detail}")
    if sandbox.desired in PAUSING or (is_observed and sandbox.status == Status.PAUSED):
        raise StartFailed(Reason.SANDBOX_PAUSED, "the sandbox was paused before the conversation began")
    return sandbox


def load_inputs(context: WorkerContext, task: StartTask, sandbox: Sandbox) -> StartInputs:
    """Read all inputs of a start in one transaction."""
    with context.database.reading() as session:
        settings = settings_store.load(session, context.vault, task.owner_id) or StoredSettings()
        tokens = secrets.provider_tokens(session, context.vault, task.owner_id)
        custom = secrets.custom_secrets(session, context.vault, task.owner_id)
        spec = session.get_one(SandboxSpec, sandbox.spec_id)
    repositories = _repositories(task.request, tokens, full=settings.git_full_clone)
    project = Project(
        conversation_id=task.conversation_id,
        working_dir=_working_dir(spec, task),
        repository=next(iter(repositories), None),
        alternatives=repositories[1:],
        author=settings.git_user_name,
        address=settings.git_user_email,
    )
    agent = _agent_inputs(context, task, settings, custom, tokens, project.folder)
    redact = _redact(context, sandbox, agent)
    return StartInputs(
        agent=agent,
        project=replace(project, redact=redact),
        redact=redact,
        max_budget=settings.max_budget_per_task,
        sandbox_id=sandbox.id,
        logins=_logins(context, sandbox, tokens),
    )


def _redact(context: WorkerContext, sandbox: Sandbox, agent: AgentInputs) -> Redact:
    """Hide the start's secrets and all others that the sandbox may know, which only a failure has to read."""
    own = redacting(secret_values(agent))
    return lambda text: own(context.hide_secrets(sandbox, agent.conversation_id, text))


def _logins(context: WorkerContext, sandbox: Sandbox, tokens: dict[str, ProviderCredential]) -> Logins:
    address = f"{context.settings.service_url}/api/v1/sandboxes/{sandbox.id}/settings/secrets"
    return Logins(address, context.vault.decrypt(sandbox.session_key), list_providers(tokens))


def _agent_inputs(
    context: WorkerContext,
    task: StartTask,
    settings: StoredSettings,
    custom: dict[str, CustomSecret],
    tokens: dict[str, ProviderCredential],
    working_dir: str,
) -> AgentInputs:
    request = task.request
    requested = json.loads(context.vault.decrypt(task.secrets)) if task.secrets else {}
    return AgentInputs(
        conversation_id=task.conversation_id,
        working_dir=working_dir,
        settings=settings,
        title_llm=None if request.get("title") else _title_llm(settings),
        secrets=custom,
        provider_tokens={provider: stored.token for provider, stored in tokens.items() if stored.token},
        user_id=task.owner_id,
        requested_model=request.get("llm_model"),
        requested_secrets=requested,
        initial_message=request.get("initial_message"),
        system_message_suffix=request.get("system_message_suffix"),
        plugins=request.get("plugins") or (),
        title=request.get("title"),
        agent_type=request.get("agent_type") or "default",
        git_provider=request.get("git_provider"),
    )


def _title_llm(settings: StoredSettings) -> Llm | None:
    """The profile for titles; None: the settings name none, or the profile is deleted."""
    profile = settings.llm_profiles.profiles.get(settings.title_llm_profile or "")
    return profile and with_stored_key(profile, settings)


def _working_dir(spec: SandboxSpec, task: StartTask) -> str:
    """The spec's working folder, or the conversation's own folder in it if sandboxes are shared (wire contract 2.1)."""
    return (
        f"{spec.working_dir.rstrip('/')}/{task.conversation_id}" if task.request.get("own_folder") else spec.working_dir
    )


def _repositories(request: Request, tokens: dict[str, ProviderCredential], *, full: bool) -> list[GitRepository]:
    """The repository at its provider; if the request names none, at each provider that the user has a token for."""
    if not (name := request.get("selected_repository")):
        return []
    named = request.get("git_provider")
    known = [provider for provider, stored in tokens.items() if stored.token] or list(tokens) or [DEFAULT_PROVIDER]
    providers = [named] if named else sorted(known, key=lambda provider: provider != DEFAULT_PROVIDER)
    return [_repository(name, provider, request, tokens, full=full) for provider in providers]


def _repository(
    name: str, provider: str, request: Request, tokens: dict[str, ProviderCredential], *, full: bool
) -> GitRepository:
    stored = tokens.get(provider)
    return GitRepository(
        name=name,
        provider=provider,
        token=stored.token if stored else None,
        host=stored.host if stored else None,
        branch=request.get("selected_branch"),
        full=full,
        keeps_branch=bool(request.get("keeps_branch")),
    )

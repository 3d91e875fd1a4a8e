"""Conversations on the wire."""

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ValidationError, model_validator

from api.schemas.page_text import cached
from api.schemas.sandbox_urls import SandboxUrls
from api.schemas.v1.fields import (
    BlankIsNone,
    ExecutionStatus,
    OptionalBranch,
    RepositoryName,
    SandboxStatus,
    ShortText,
    Time,
    one_of,
)
from api.schemas.v1.sandboxes import agent_server_url, wire_status
from api.schemas.v1.start_tasks import Trigger
from shared.conversations.lists import read_text
from shared.crypto import Vault
from shared.models import Conversation, Sandbox
from shared.states import Status
from shared.users.settings import Provider


class TokenUsage(BaseModel):
    """Tokens, summed over all models that the conversation used."""

    model: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    context_window: int = 0
    per_turn_token: int = 0
    response_id: str = ""


class MetricsSnapshot(BaseModel):
    """The costs of a conversation, in US dollars and in tokens."""

    model_name: str = "default"
    accumulated_cost: float = 0.0
    max_budget_per_task: float | None = None
    accumulated_token_usage: TokenUsage | None = None


class LaunchedAgentProfile(BaseModel):
    """The agent profile that a conversation was started with, according to its tags."""

    agent_profile_id: UUID
    revision: int


class Workspace(BaseModel):
    """The directory of the conversation in its sandbox (Agent Canvas reads it)."""

    kind: Literal["LocalWorkspace"] = "LocalWorkspace"
    working_dir: str


class AppConversation(BaseModel):
    """V1's AppConversation. `execution_reason` and `execution_detail` are Agent Workspace extensions."""

    id: str
    created_by_user_id: str | None
    sandbox_id: str
    selected_repository: str | None
    selected_branch: str | None
    git_provider: Annotated[str, one_of(Provider)] | None
    title: str | None
    trigger: Annotated[str, one_of(Trigger)] | None
    pr_number: list[int]
    llm_model: str | None
    agent_kind: str
    metrics: MetricsSnapshot | None
    parent_conversation_id: str | None
    sub_conversation_ids: list[str]
    public: bool | None
    tags: dict[str, str]
    created_at: Time
    updated_at: Time
    sandbox_status: SandboxStatus
    execution_status: ExecutionStatus | None
    # Why the conversation is in error, or that its model does not respond: a code, and a text.
    execution_reason: str | None = None
    execution_detail: str | None = None
    conversation_url: str | None
    session_api_key: str | None
    acp_server: str | None
    launched_agent_profile: LaunchedAgentProfile | None
    workspace: Workspace | None


class ConversationUpdate(BaseModel):
    """Changes of a conversation. A field that is not sent stays unchanged; null removes its value."""

    title: Annotated[ShortText | None, BlankIsNone] = None
    public: bool | None = None
    selected_repository: Annotated[RepositoryName | None, BlankIsNone] = None
    selected_branch: OptionalBranch = None
    git_provider: Provider | None = None

    @model_validator(mode="after")
    def _check_repository(self) -> "ConversationUpdate":
        removes_repository = "selected_repository" in self.model_fields_set and self.selected_repository is None
        if removes_repository and (self.selected_branch or self.git_provider):
            raise ValueError("selected_branch and git_provider need a selected_repository")
        return self

    def columns(self) -> dict[str, Any]:
        """Return the columns to change. A removed repository removes branch and provider, too."""
        sent = {name: getattr(self, name) for name in self.model_fields_set}
        if "selected_repository" in sent and sent["selected_repository"] is None:
            sent |= {"selected_branch": None, "git_provider": None}
        return sent


def serialize_conversation(
    conversation: Conversation, sandbox: Sandbox, children: list[str], vault: Vault, urls: SandboxUrls
) -> AppConversation:
    """Show a conversation to its owner, with URL and key of its sandbox only while that runs (wire contract 1.1)."""
    url = agent_server_url(sandbox, urls)
    running = wire_status(sandbox) == Status.RUNNING
    columns = conversation.model_dump(exclude={"metrics"})
    return AppConversation.model_validate(
        columns
        | {
            "created_by_user_id": conversation.owner_id,
            "parent_conversation_id": conversation.parent_id,
            "sub_conversation_ids": children,
            "metrics": _serialize_metrics(conversation),
            "sandbox_status": wire_status(sandbox),
            "execution_status": conversation.execution_status if running else None,
            "execution_reason": conversation.execution_reason if running else None,
            "execution_detail": conversation.execution_detail if running else None,
            "conversation_url": f"{url}/api/conversations/{conversation.id}" if url else None,
            "session_api_key": vault.decrypt_if_possible(sandbox.session_key) if running else None,
            "acp_server": conversation.tags.get("acpserver") if conversation.agent_kind == "acp" else None,
            "launched_agent_profile": _read_profile(conversation.tags),
            "workspace": Workspace(working_dir=conversation.working_dir) if conversation.working_dir else None,
        }
    )


@cached
def write_conversation(text: str, vault: Vault, urls: SandboxUrls) -> bytes:
    """Encode a conversation of a list."""
    return serialize_conversation(*read_text(text), vault, urls).model_dump_json().encode()


def _serialize_metrics(conversation: Conversation) -> dict[str, Any] | None:
    metrics = conversation.metrics
    return metrics and metrics | {"max_budget_per_task": conversation.max_budget}


def _read_profile(tags: dict[str, str]) -> LaunchedAgentProfile | None:
    if "agentprofileid" not in tags:
        return None
    revision = tags.get("agentprofilerevision", "0")
    try:
        return LaunchedAgentProfile.model_validate({"agent_profile_id": tags["agentprofileid"], "revision": revision})
    except ValidationError:
        return None  # the agent may write any tags

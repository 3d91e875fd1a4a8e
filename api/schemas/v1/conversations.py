"""Conversations on the wire."""

from functools import lru_cache
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ValidationError, model_validator

from api.schemas.page_text import REMEMBERED
from api.schemas.v1.request_fields import Blank, Branch, Line, Repository
from api.schemas.v1.sandboxes import agent_server_url, wire_status
from api.schemas.v1.triggers import Trigger
from api.schemas.v1.wire_types import ExecutionStatus, SandboxStatus, Time, one_of
from shared.conversations.lists import read_text
from shared.crypto import Vault
from shared.models import Conversation, Sandbox
from shared.states import Status
from shared.users.settings import Provider


class TokenUsage(BaseModel):
    """Tokens, summed over every model the conversation used."""

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
    """What a conversation has cost, in US dollars and in tokens."""

    model_name: str = "default"
    accumulated_cost: float = 0.0
    max_budget_per_task: float | None = None
    accumulated_token_usage: TokenUsage | None = None


class LaunchedAgentProfile(BaseModel):
    """The agent profile a conversation was started with, as its tags say."""

    agent_profile_id: UUID
    revision: int


class Workspace(BaseModel):
    """Where in its sandbox the conversation works (Agent Canvas reads it)."""

    kind: Literal["LocalWorkspace"] = "LocalWorkspace"
    working_dir: str


class AppConversation(BaseModel):
    """V1's AppConversation; `execution_reason` and `execution_detail` are ours."""

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
    # Why it is in error, or that its model is silent: a code, and a text.
    execution_reason: str | None = None
    execution_detail: str | None = None
    conversation_url: str | None
    session_api_key: str | None
    acp_server: str | None
    launched_agent_profile: LaunchedAgentProfile | None
    workspace: Workspace | None


class ConversationUpdate(BaseModel):
    """What to change of a conversation; a field that is not sent stays, null takes it away."""

    title: Annotated[Line | None, Blank] = None
    public: bool | None = None
    selected_repository: Annotated[Repository | None, Blank] = None
    selected_branch: Annotated[Branch | None, Blank] = None
    git_provider: Provider | None = None

    @model_validator(mode="after")
    def _check_repository(self) -> "ConversationUpdate":
        taken_away = "selected_repository" in self.model_fields_set and self.selected_repository is None
        if taken_away and (self.selected_branch or self.git_provider):
            raise ValueError("without selected_repository there is no selected_branch and no git_provider")
        return self

    def columns(self) -> dict[str, Any]:
        """The columns to change; branch and provider go with the repository."""
        sent = {name: getattr(self, name) for name in self.model_fields_set}
        if "selected_repository" in sent and sent["selected_repository"] is None:
            sent |= {"selected_branch": None, "git_provider": None}
        return sent


def show_conversation(
    conversation: Conversation, sandbox: Sandbox, children: list[str], vault: Vault, origin: str | None = None
) -> AppConversation:
    """A conversation for its owner; what leads into the sandbox is shown while that runs (wire contract 1.1).

    Args:
        conversation: its row.
        sandbox: that of its sandbox.
        children: the ids of its sub-conversations.
        vault: decrypts the sandbox's key.
        origin: of a browser that reaches agent servers through us: this service's.
    """
    url = agent_server_url(sandbox, origin)
    running = wire_status(sandbox) == Status.RUNNING
    known = conversation.model_dump(exclude={"metrics"})
    return AppConversation.model_validate(
        known
        | {
            "created_by_user_id": conversation.owner_id,
            "parent_conversation_id": conversation.parent_id,
            "sub_conversation_ids": children,
            "metrics": _show_metrics(conversation),
            "sandbox_status": wire_status(sandbox),
            "execution_status": conversation.execution_status if running else None,
            "execution_reason": conversation.execution_reason if running else None,
            "execution_detail": conversation.execution_detail if running else None,
            "conversation_url": f"{url}/api/conversations/{conversation.id}" if url else None,
            "session_api_key": vault.decrypt(sandbox.session_key) if running else None,
            "acp_server": conversation.tags.get("acpserver"),
            "launched_agent_profile": _read_profile(conversation.tags),
            "workspace": _show_workspace(conversation),
        }
    )


@lru_cache(REMEMBERED)
def write_conversation(text: str, vault: Vault, origin: str | None) -> bytes:
    """The JSON of a conversation in a list; it is remembered by the text, which holds all that it depends on."""
    return show_conversation(*read_text(text), vault, origin).model_dump_json().encode()


def _show_metrics(conversation: Conversation) -> dict[str, Any] | None:
    metrics = conversation.metrics
    return metrics and metrics | {"max_budget_per_task": conversation.max_budget}


def _show_workspace(conversation: Conversation) -> Workspace | None:
    return Workspace(working_dir=conversation.working_dir) if conversation.working_dir else None


def _read_profile(tags: dict[str, str]) -> LaunchedAgentProfile | None:
    if "agentprofileid" not in tags:
        return None
    revision = tags.get("agentprofilerevision", "0")
    try:
        return LaunchedAgentProfile.model_validate({"agent_profile_id": tags["agentprofileid"], "revision": revision})
    except ValidationError:
        return None  # tags are the agent's to write

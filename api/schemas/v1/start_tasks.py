"""Start tasks on the wire, and the request that creates one."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Response
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, PlainSerializer, SecretStr, model_validator

from api.schemas.sandbox_urls import SandboxUrls
from api.schemas.v1.agent_settings import Document
from api.schemas.v1.fields import (
    BlankIsNone,
    ModelName,
    OptionalBranch,
    RepositoryName,
    ShortText,
    StartTaskStatus,
    Time,
    Value,
    check_secret_names,
)
from api.schemas.v1.sandboxes import agent_server_url
from api.schemas.v1.suggested_tasks import SuggestedTask, prompt_for
from shared.conversations.webhook_reports import MAX_TITLE_LENGTH
from shared.errors import Invalid
from shared.ids import parse_id
from shared.json_documents import check_texts
from shared.models import Sandbox, StartTask
from shared.states import Stage
from shared.users.settings import Provider

MAX_MESSAGE_LENGTH = 1_000_000
MAX_PARTS = 100


def _read_id(text: str) -> str:
    try:
        return parse_id(text)
    except Invalid:
        raise ValueError("an id must be 32 hexadecimal digits, with or without dashes") from None


def _cut_title(title: Any) -> Any:
    return title[:MAX_TITLE_LENGTH] if isinstance(title, str) else title


Secrets = Annotated[dict[str, Value], BeforeValidator(check_secret_names)]
# Of a text without any bound, pydantic accepts half of a surrogate pair, which no response could contain.
ImageUrls = Annotated[list[str], Field(max_length=MAX_PARTS), AfterValidator(check_texts)]
SandboxId = Annotated[str, AfterValidator(_read_id)]
# V1 writes this id without dashes, and `conversation_id` with them (wire contract, section 0).
HexId = Annotated[UUID, PlainSerializer(lambda value: value.hex, return_type=str)]


class Trigger(StrEnum):
    """Where a conversation was started (wire contract, appendix B)."""

    RESOLVER = "resolver"
    GUI = "gui"
    SUGGESTED_TASK = "suggested_task"
    OPENHANDS_API = "openhands_api"
    SLACK = "slack"
    MICROAGENT_MANAGEMENT = "microagent_management"
    JIRA = "jira"
    JIRA_DC = "jira_dc"
    LINEAR = "linear"
    BITBUCKET = "bitbucket"
    AUTOMATION = "automation"


class TextContent(BaseModel):
    """A text of a message."""

    type: Literal["text"] = "text"
    text: str = Field(max_length=MAX_MESSAGE_LENGTH)
    cache_prompt: bool = False


class ImageContent(BaseModel):
    """Images of a message. Each is a URL; `data:` URLs are accepted."""

    type: Literal["image"] = "image"
    image_urls: ImageUrls
    cache_prompt: bool = False


class SendMessageRequest(BaseModel):
    """A message for the agent. The first one always runs the agent, even without `run`."""

    role: Literal["user", "system", "assistant", "tool"] = "user"
    content: list[TextContent | ImageContent] = Field(default_factory=list, max_length=MAX_PARTS)
    run: bool = False


class FirstMessage(SendMessageRequest):
    """A conversation's first message. The agent server takes messages of users only, and fails at any other."""

    role: Literal["user"] = "user"


class PluginSpec(BaseModel):
    """A plugin that the agent server fetches."""

    source: str = Field(max_length=2000)
    ref: str | None = Field(default=None, max_length=255)
    repo_path: str | None = Field(default=None, max_length=1024)
    parameters: Document | None = None


class StartRequestInfo(BaseModel):
    """V1's AppConversationStartRequest in a response, with secrets masked."""

    sandbox_id: Annotated[SandboxId | None, BlankIsNone] = None
    conversation_id: UUID | None = None
    initial_message: SendMessageRequest | None = None
    system_message_suffix: str | None = Field(default=None, max_length=MAX_MESSAGE_LENGTH)
    # V1's callbacks inside the server: accepted, and not stored.
    processors: None = None
    # Not checked: one inherited from a parent is what the parent's sandbox or an older setting says.
    llm_model: str | None = None
    agent_profile_id: str | None = Field(default=None, max_length=256)
    selected_repository: Annotated[RepositoryName | None, BlankIsNone] = None
    # Not checked: a branch inherited from a parent is what the parent's sandbox reports.
    selected_branch: str | None = None
    git_provider: Provider | None = None
    suggested_task: SuggestedTask | None = None
    # Web clients send instructions as the title, of any length.
    title: Annotated[ShortText | None, BlankIsNone, BeforeValidator(_cut_title)] = None
    trigger: Trigger | None = None
    pr_number: list[Annotated[int, Field(ge=0, le=2**63 - 1)]] = Field(default_factory=list, max_length=1000)
    parent_conversation_id: HexId | None = None
    agent_type: Literal["default", "plan"] = "default"
    public: bool | None = None
    plugins: list[PluginSpec] | None = Field(default=None, max_length=100)
    secrets: dict[str, SecretStr] | None = None


class StartRequest(StartRequestInfo):
    """V1's AppConversationStartRequest. `{}` is valid, and unknown fields are ignored."""

    initial_message: FirstMessage | None = None
    processors: Annotated[None, BeforeValidator(lambda _: None)] = None
    llm_model: Annotated[ModelName | None, BlankIsNone] = None
    selected_branch: OptionalBranch = None
    secrets: Secrets | None = None

    @model_validator(mode="after")
    def _apply_task(self) -> "StartRequest":
        task = self.suggested_task
        if task is None:
            return self
        if self.initial_message is not None:
            raise ValueError("send initial_message or suggested_task, not both")
        self.initial_message = FirstMessage(content=[TextContent(text=prompt_for(task))], run=True)
        self.trigger = Trigger.SUGGESTED_TASK
        self.selected_repository = self.selected_repository or task.repo
        self.git_provider = self.git_provider or task.git_provider
        return self

    def shown(self) -> dict[str, Any]:
        """Return the request to store and to show, with secrets masked by ten asterisks."""
        return self.model_dump(mode="json")

    def revealed(self) -> dict[str, str]:
        """Return the request's secrets in clear."""
        return {name: secret.get_secret_value() for name, secret in (self.secrets or {}).items()}


class StartTaskInfo(BaseModel):
    """V1's AppConversationStartTask. `reason` and `paused_sandbox_ids` are Agent Workspace extensions."""

    id: str
    created_by_user_id: str | None
    status: StartTaskStatus
    detail: str | None = None
    # Why the task is in ERROR: a code.
    reason: str | None = None
    app_conversation_id: str | None = None
    sandbox_id: str | None = None
    agent_server_url: str | None = None
    request: StartRequestInfo
    created_at: Time
    updated_at: Time
    # In the response to a start: the caller's sandboxes that are paused to make room for its sandbox.
    paused_sandbox_ids: list[str] = Field(default_factory=list)


def serialize_start_task(
    task: StartTask, sandbox: Sandbox | None, paused: Sequence[Sandbox] = (), *, urls: SandboxUrls
) -> StartTaskInfo:
    """Show a start task to its owner; each field appears with its stage (wire contract 1.2)."""
    failed = task.stage == Stage.ERROR
    with_server = task.stage in (Stage.STARTING_CONVERSATION, Stage.READY)
    return StartTaskInfo(
        id=task.id,
        created_by_user_id=task.owner_id,
        status=task.stage,
        detail=task.detail if failed else None,
        reason=task.reason if failed else None,
        app_conversation_id=task.conversation_id if task.stage == Stage.READY else None,
        sandbox_id=None if task.stage == Stage.WORKING else task.sandbox_id,
        agent_server_url=agent_server_url(sandbox, urls) if with_server else None,
        request=StartRequestInfo.model_validate(task.request),
        created_at=task.created_at,
        updated_at=task.updated_at,
        paused_sandbox_ids=[row.id for row in paused],
    )


def write_start_task(shown: StartTaskInfo) -> bytes:
    """Encode a start task. Call this in a thread: a request has up to 4 MB."""
    return shown.model_dump_json().encode()


def start_task_response(shown: StartTaskInfo | Response) -> Response:
    """Return the response for a start task; a stored response is returned unchanged. Call this in a thread."""
    if isinstance(shown, Response):
        return shown
    return Response(write_start_task(shown), media_type="application/json")

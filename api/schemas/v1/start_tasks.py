"""Start tasks on the wire, and the request that makes one."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Response
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    PlainSerializer,
    SecretStr,
    model_validator,
)

from api.schemas.v1.fields import Value
from api.schemas.v1.request_fields import Blank, Branch, Line, Repository
from api.schemas.v1.sandboxes import agent_server_url
from api.schemas.v1.suggested_tasks import SuggestedTask, prompt_for
from api.schemas.v1.texts import check_secret_names
from api.schemas.v1.triggers import Trigger
from api.schemas.v1.wire_types import StartTaskStatus, Time
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
        raise ValueError("an id is 32 hexadecimal digits, with dashes or without") from None


def _checked(value: Any) -> Any:
    check_texts(value)
    return value


Secrets = Annotated[dict[str, Value], BeforeValidator(check_secret_names)]
Parameters = Annotated[dict[str, Any], BeforeValidator(_checked)]
SandboxId = Annotated[str, AfterValidator(_read_id)]
# V1 writes this id without dashes, and `conversation_id` with them (wire contract, section 0).
HexId = Annotated[UUID, PlainSerializer(lambda value: value.hex, return_type=str)]


class TextContent(BaseModel):
    """A text of a message."""

    type: Literal["text"] = "text"
    text: str = Field(max_length=MAX_MESSAGE_LENGTH)
    cache_prompt: bool = False


class ImageContent(BaseModel):
    """Images of a message, each a URL; `data:` URLs are welcome."""

    type: Literal["image"] = "image"
    image_urls: list[str] = Field(max_length=MAX_PARTS)
    cache_prompt: bool = False


class SendMessageRequest(BaseModel):
    """A message for the agent. The first one always sets it running, whatever `run` says."""

    role: Literal["user", "system", "assistant", "tool"] = "user"
    content: list[TextContent | ImageContent] = Field(default_factory=list, max_length=MAX_PARTS)
    run: bool = False


class PluginSpec(BaseModel):
    """A plugin that the agent server fetches."""

    source: str = Field(max_length=2000)
    ref: str | None = Field(default=None, max_length=255)
    repo_path: str | None = Field(default=None, max_length=1024)
    parameters: Parameters | None = None


class StartRequestInfo(BaseModel):
    """V1's AppConversationStartRequest, as it is shown; secrets are masked."""

    sandbox_id: Annotated[SandboxId | None, Blank] = None
    conversation_id: UUID | None = None
    initial_message: SendMessageRequest | None = None
    system_message_suffix: str | None = Field(default=None, max_length=MAX_MESSAGE_LENGTH)
    # V1's callbacks inside the server: accepted, and not kept.
    processors: None = None
    llm_model: Annotated[Line | None, Blank] = None
    agent_profile_id: str | None = Field(default=None, max_length=256)
    selected_repository: Annotated[Repository | None, Blank] = None
    selected_branch: Annotated[Branch | None, Blank] = None
    git_provider: Provider | None = None
    suggested_task: SuggestedTask | None = None
    title: Annotated[Line | None, Blank] = None
    trigger: Trigger | None = None
    pr_number: list[Annotated[int, Field(ge=0, le=2**63 - 1)]] = Field(default_factory=list, max_length=1000)
    parent_conversation_id: HexId | None = None
    agent_type: Literal["default", "plan"] = "default"
    public: bool | None = None
    plugins: list[PluginSpec] | None = Field(default=None, max_length=100)
    secrets: dict[str, SecretStr] | None = None


class StartRequest(StartRequestInfo):
    """V1's AppConversationStartRequest, as it is sent: `{}` is enough, unknown fields are ignored."""

    processors: Annotated[None, BeforeValidator(lambda _: None)] = None
    secrets: Secrets | None = None

    @model_validator(mode="after")
    def _take_up_task(self) -> "StartRequest":
        task = self.suggested_task
        if task is None:
            return self
        if self.initial_message is not None:
            raise ValueError("initial_message and suggested_task exclude each other")
        self.initial_message = SendMessageRequest(content=[TextContent(text=prompt_for(task))], run=True)
        self.trigger = Trigger.SUGGESTED_TASK
        self.selected_repository = self.selected_repository or task.repo
        self.git_provider = self.git_provider or task.git_provider
        return self

    def shown(self) -> dict[str, Any]:
        """The request as it is kept and shown, its secrets masked with ten asterisks."""
        return self.model_dump(mode="json")

    def revealed(self) -> dict[str, str]:
        """The request's secrets in clear."""
        return {name: secret.get_secret_value() for name, secret in (self.secrets or {}).items()}


class StartTaskInfo(BaseModel):
    """V1's AppConversationStartTask; `reason` and `paused_sandbox_ids` are ours."""

    id: str
    created_by_user_id: str | None
    status: StartTaskStatus
    detail: str | None = None
    # Why it is in ERROR, for machines.
    reason: str | None = None
    app_conversation_id: str | None = None
    sandbox_id: str | None = None
    agent_server_url: str | None = None
    request: StartRequestInfo
    created_at: Time
    updated_at: Time
    # In the answer of a start: the caller's sandboxes that are paused to make room for its sandbox.
    paused_sandbox_ids: list[str] = Field(default_factory=list)


def show_start_task(
    task: StartTask, sandbox: Sandbox | None, paused: Sequence[Sandbox] = (), origin: str | None = None
) -> StartTaskInfo:
    """A start task for its owner; each field appears with its stage (wire contract 1.2)."""
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
        agent_server_url=agent_server_url(sandbox, origin) if with_server else None,
        request=StartRequestInfo.model_validate(task.request),
        created_at=task.created_at,
        updated_at=task.updated_at,
        paused_sandbox_ids=[row.id for row in paused],
    )


def write_start_task(shown: StartTaskInfo) -> bytes:
    """Its JSON. A request has up to 4 MB: to be called in a thread."""
    return shown.model_dump_json().encode()


def answer_start_task(shown: StartTaskInfo | Response) -> Response:
    """The answer that shows it, made in a thread as it is; one that was kept is one already."""
    if isinstance(shown, Response):
        return shown
    return Response(write_start_task(shown), media_type="application/json")

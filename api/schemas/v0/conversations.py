"""Conversations in V0 (wire contract, section 5)."""

from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from api.schemas.v1.conversations import AppConversation
from api.schemas.v1.fields import BlankIsNone, OptionalBranch, RepositoryName, Time, one_of
from api.schemas.v1.start_tasks import (
    MAX_MESSAGE_LENGTH,
    FirstMessage,
    ImageContent,
    ImageUrls,
    StartRequest,
    StartRequestInfo,
    StartTaskInfo,
    TextContent,
    Trigger,
)
from api.schemas.v1.suggested_tasks import SuggestedTask
from shared.conversations.queries import default_title
from shared.models import StartTask
from shared.states import Reason, Stage
from shared.users.settings import Provider

# V0's status for each of V1's statuses of a sandbox.
STATUS = {
    "STARTING": "STARTING",
    "RUNNING": "RUNNING",
    "PAUSED": "STOPPED",
    "ERROR": "ERROR",
    "MISSING": "ARCHIVED",
}
Status = Annotated[str, one_of(STATUS.values())]
NO_SETTINGS = "CONFIGURATION$SETTINGS_NOT_FOUND"


def _refuse(value: Any) -> Any:
    if value is not None:
        raise ValueError("this field is no longer supported")
    return value


Unsupported = Annotated[Any, AfterValidator(_refuse)]


class NewConversation(BaseModel):
    """V0's request to start a conversation. V0's other fields are a 422, as unknown fields are."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    repository: Annotated[RepositoryName | None, BlankIsNone] = None
    git_provider: Provider | None = None
    selected_branch: OptionalBranch = None
    initial_user_msg: str | None = Field(default=None, max_length=MAX_MESSAGE_LENGTH)
    image_urls: ImageUrls | None = None
    suggested_task: SuggestedTask | None = None
    conversation_instructions: str | None = Field(default=None, max_length=MAX_MESSAGE_LENGTH)
    conversation_id: UUID | None = None
    replay_json: Unsupported = None
    create_microagent: Unsupported = None
    mcp_config: Unsupported = None

    def as_v1(self) -> StartRequest:
        """Convert the request to V1's. A suggested task takes precedence over a message. A missing id is chosen now."""
        return StartRequest(
            conversation_id=self.conversation_id or uuid4(),
            initial_message=None if self.suggested_task else self._message(),
            suggested_task=self.suggested_task,
            system_message_suffix=self.conversation_instructions,
            selected_repository=self.repository,
            selected_branch=self.selected_branch,
            git_provider=self.git_provider,
            trigger=Trigger.GUI,
        )

    def _message(self) -> FirstMessage | None:
        parts: list[TextContent | ImageContent] = []
        if self.initial_user_msg:
            parts.append(TextContent(text=self.initial_user_msg))
        if self.image_urls:
            parts.append(ImageContent(image_urls=self.image_urls))
        return FirstMessage(content=parts, run=True) if parts else None


class ConversationAnswer(BaseModel):
    """V0's response to a command for a conversation."""

    status: Literal["ok", "error"] = "ok"
    conversation_id: str
    message: str | None = None
    conversation_status: Status


class TitleUpdate(BaseModel):
    """The new title of a conversation; V0 changes nothing else."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    title: str = Field(min_length=1, max_length=200)


class ConversationInfo(BaseModel):
    """V0's ConversationInfo. All conversations have version V1, and no clients are connected through the service."""

    conversation_id: str
    title: str | None
    created_at: Time
    last_updated_at: Time
    status: Status
    runtime_status: str | None = None
    selected_repository: str | None
    selected_branch: str | None
    git_provider: str | None
    trigger: str | None
    num_connections: int = 0
    url: str | None = None
    session_api_key: str | None = None
    pr_number: list[int]
    conversation_version: Literal["V1"] = "V1"
    sub_conversation_ids: list[str] = []


class ConversationResults(BaseModel):
    """A page of conversations."""

    results: list[ConversationInfo]
    next_page_id: str | None


def serialize_v0(shown: AppConversation) -> ConversationInfo:
    """Show a conversation in V0's shape."""
    return ConversationInfo(
        **shown.model_dump(include=set(ConversationInfo.model_fields)),
        conversation_id=shown.id,
        last_updated_at=shown.updated_at,
        status=STATUS[shown.sandbox_status],
        url=shown.conversation_url,
    )


def serialize_starting(task: StartTask) -> ConversationInfo:
    """Show a conversation whose start is in progress, or failed."""
    request = StartRequestInfo.model_validate(task.request)
    return ConversationInfo(
        conversation_id=task.conversation_id,
        title=request.title or default_title(task.conversation_id),
        created_at=task.created_at,
        last_updated_at=task.updated_at,
        status=_status_of(task.stage),
        selected_repository=request.selected_repository,
        selected_branch=request.selected_branch,
        git_provider=request.git_provider,
        trigger=request.trigger,
        pr_number=request.pr_number,
    )


def serialize_start(task: StartTaskInfo) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the body of the response to a start: a 400 if settings are missing."""
    response = ConversationAnswer(
        conversation_id=task.request.conversation_id.hex if task.request.conversation_id else task.id,
        conversation_status=_status_of(task.status),
    ).model_dump()
    if task.reason == Reason.LLM_KEY_MISSING:
        return 400, response | {"status": "error", "message": task.detail, "msg_id": NO_SETTINGS, "detail": task.detail}
    return 200, response | {"message": task.detail}


def _status_of(stage: str) -> str:
    return {Stage.READY: "RUNNING", Stage.ERROR: "ERROR"}.get(Stage(stage), "STARTING")

"""Messages to an agent that is at work, or will be."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from api.schemas.v1.start_tasks import MAX_PARTS, ImageContent, TextContent
from api.schemas.v1.wire_types import SandboxStatus, Time
from shared.models import PendingMessage


class QueuedMessage(BaseModel):
    """What a user says."""

    role: Literal["user"] = "user"
    content: list[TextContent | ImageContent] = Field(min_length=1, max_length=MAX_PARTS)


class UserMessage(QueuedMessage):
    """What a user says; with `run`, the agent goes on with it at once."""

    run: bool = True


class MessageSent(BaseModel):
    """The agent server has it."""

    success: bool
    sandbox_status: SandboxStatus
    message: str | None = None


class PendingMessageResponse(BaseModel):
    """The message will be delivered; `position` counts those that wait, from 1 on."""

    id: str
    queued: bool
    position: int


class PendingMessageInfo(BaseModel):
    """A message that waits; with a `refusal`, the agent server does not take it, and it waits no more."""

    id: str
    role: Literal["user"] = "user"
    content: list[dict[str, Any]]
    created_at: Time
    refusal: str | None = None


def show_pending_message(message: PendingMessage) -> PendingMessageInfo:
    """A message for whoever wrote it."""
    return PendingMessageInfo(
        id=message.id, content=message.content, created_at=message.created_at, refusal=message.refusal
    )

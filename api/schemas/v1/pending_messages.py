"""Messages to an agent: sent immediately, or pending."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from api.schemas.v1.fields import SandboxStatus, Time
from api.schemas.v1.start_tasks import MAX_PARTS, ImageContent, TextContent


class QueuedMessage(BaseModel):
    """A user's message."""

    role: Literal["user"] = "user"
    content: list[TextContent | ImageContent] = Field(min_length=1, max_length=MAX_PARTS)


class UserMessage(QueuedMessage):
    """A user's message; with `run`, the agent starts on it immediately."""

    run: bool = True


class MessageSent(BaseModel):
    """The response to a message that the agent server accepted."""

    success: bool
    sandbox_status: SandboxStatus
    message: str | None = None


class PendingMessageResponse(BaseModel):
    """The response to a message that will be delivered; `position` is its place among the pending ones, from 1."""

    id: str
    queued: bool
    position: int


class PendingMessageInfo(BaseModel):
    """A pending message. With a `refusal`, the agent server rejected it, and it is not sent again."""

    id: str
    role: Literal["user"] = "user"
    content: list[dict[str, Any]]
    created_at: Time
    refusal: str | None = None

"""Shapes of agent servers' responses. Only the fields that a worker uses are checked; others are ignored.

Lists and texts have a max length, and ids are checked: a hostile response can't fill the memory or name other paths.
"""

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, RootModel

from shared.json_documents import storable

MAX_ITEMS = 100

Uuid = Annotated[str, Field(pattern=r"^[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}$")]
# Id of an event or a page.
Name = Annotated[str, Field(pattern=r"^[!-~]{1,64}$")]


@dataclass(frozen=True)
class CommandResult:
    """Result of a shell command. `exit_code` -1: the command timed out or never started."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Text of both streams, standard output first."""
        return self.stdout + self.stderr


class Document(RootModel[dict[str, Any]]):
    """A JSON object with any fields."""


class InitState(BaseModel):
    """State of a server's deferred init."""

    state: Annotated[str, Field(max_length=100)]


class CommandOutcome(BaseModel):
    """Outcome of a shell command. A stream without text may be null."""

    exit_code: int
    stdout: str | None
    stderr: str | None

    @property
    def result(self) -> CommandResult:
        """The outcome with texts that every database can store."""
        return CommandResult(self.exit_code, storable(self.stdout or ""), storable(self.stderr or ""))


class ConversationShape(BaseModel):
    """The fields of a conversation that a worker reads."""

    title: str | None = None
    last_user_message_id: str | None = None


class Running(BaseModel):
    """A conversation with a running agent."""

    id: Uuid


class Page(BaseModel):
    """A page of a list, and the id of the next page."""

    next_page_id: Name | None = None


class RunningPage(Page):
    """Conversations with running agents."""

    items: Annotated[list[Running], Field(max_length=MAX_ITEMS)]


class MessageContent(BaseModel):
    """Content of a user's message: texts and images are used, other items are ignored."""

    content: Annotated[list[dict[str, Any]], Field(max_length=10_000)] = []


class Message(BaseModel):
    """A message event."""

    id: Name
    llm_message: MessageContent = MessageContent()


class MessagePage(Page):
    """A page of messages."""

    items: Annotated[list[Message], Field(max_length=MAX_ITEMS)]


AnyPage = TypeVar("AnyPage", bound=Page)

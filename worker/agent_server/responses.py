"""The shapes of what agent servers answer: only what a worker uses is checked, what is beside it does not matter.

Lists and texts have a max, ids are ids: what is kept of a hostile answer is small, and does not lead elsewhere.
"""

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, RootModel

from shared.json_documents import storable

MAX_ITEMS = 100

Uuid = Annotated[str, Field(pattern=r"^[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}$")]
# Of an event, and of a page.
Name = Annotated[str, Field(pattern=r"^[!-~]{1,64}$")]


@dataclass(frozen=True)
class CommandResult:
    """What became of a shell command. `exit_code` -1: it ran out of time or never started."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Both streams, standard output first."""
        return self.stdout + self.stderr


class Document(RootModel[dict[str, Any]]):
    """An object, whatever is in it."""


class InitState(BaseModel):
    """How far a server is that waits for its configuration."""

    state: Annotated[str, Field(max_length=100)]


class CommandOutcome(BaseModel):
    """A shell command's end; a stream without text may be null."""

    exit_code: int
    stdout: str | None
    stderr: str | None

    @property
    def result(self) -> CommandResult:
        """The same, as texts that every database stores."""
        return CommandResult(self.exit_code, storable(self.stdout or ""), storable(self.stderr or ""))


class ConversationShape(BaseModel):
    """A conversation, as far as a worker reads it."""

    title: str | None = None
    last_user_message_id: str | None = None


class Running(BaseModel):
    """A conversation whose agent is at work."""

    id: Uuid


class Page(BaseModel):
    """A part of a list, and where the next part begins."""

    next_page_id: Name | None = None


class RunningPage(Page):
    """Conversations whose agents are at work."""

    items: Annotated[list[Running], Field(max_length=MAX_ITEMS)]


class Said(BaseModel):
    """What a user has said: parts, of which a text or images are of interest."""

    content: Annotated[list[dict[str, Any]], Field(max_length=10_000)] = []


class Message(BaseModel):
    """An event that is a message."""

    id: Name
    llm_message: Said = Said()


class MessagePage(Page):
    """Messages."""

    items: Annotated[list[Message], Field(max_length=MAX_ITEMS)]


AnyPage = TypeVar("AnyPage", bound=Page)

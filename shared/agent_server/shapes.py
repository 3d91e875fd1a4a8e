"""Shapes of agent servers' responses. Only the fields that API or worker use are checked; others are ignored.

Lists and texts have a max length, and ids are checked: a hostile response can't fill the memory or name other paths.
"""

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, RootModel, ValidationError

from shared.agent_server.limits import MAX_HOOKS, MAX_ITEMS, MAX_SKILLS, MAX_VALUES
from shared.json_documents import read_document, storable

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
    stdout: str | None = None
    stderr: str | None = None

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


class EventPage(Page):
    """A page of events."""

    items: Annotated[list[dict[str, Any]], Field(max_length=MAX_ITEMS)]


class GitChanges(RootModel[list[dict[str, Any]]]):
    """Changed files; their number is limited by that of values."""


class GitDiff(BaseModel):
    """A file before and after its changes."""

    original: str | None
    modified: str | None


class Skills(BaseModel):
    """A project's skills."""

    skills: Annotated[list[dict[str, Any]], Field(max_length=MAX_SKILLS)]


class Hooks(BaseModel):
    """A project's hooks by their event."""

    hook_config: Annotated[dict[str, list[Any] | None], Field(max_length=MAX_HOOKS)] | None


Shape = TypeVar("Shape", bound=BaseModel)
AnyPage = TypeVar("AnyPage", bound=Page)


def read_shape(content: bytes, shape: type[Shape], max_values: int = MAX_VALUES) -> tuple[Shape, Any]:
    """Parse and check the content of a response.

    Returns:
        The parsed `shape`, and the whole document.

    Raises:
        ValueError: the content is not JSON of that shape; the text does not quote the content.
    """
    document = read_document(content, max_values)
    try:
        return shape.model_validate(document, strict=True), document
    except ValidationError:
        raise ValueError("the document has another shape") from None

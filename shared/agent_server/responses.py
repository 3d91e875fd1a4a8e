"""Agent servers' responses: their bounded reader, their shapes and their errors' texts (decision 45).

An agent server is as hostile as the agent in its sandbox. A transport sends a request, enforces one deadline for the
whole exchange and the max size of the header (`limits.limited_header`), and feeds the content to a `ResponseReader`:
that limits its size and its chunks. Encoded content is refused: a small part may inflate to any size. `read_shape` then
limits the values of a document, and checks its shape: the fields that API or worker use; others are ignored. Lists and
texts have a max length, and ids are checked: a hostile response can't fill the memory or name other paths.
"""

import re
from dataclasses import dataclass
from functools import cache
from ssl import PROTOCOL_TLS_CLIENT, SSLContext
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import httpx
from pydantic import BaseModel, Field, RootModel, ValidationError

from shared.agent_server import limits
from shared.agent_server.errors import AgentServerRefused, AgentServerUnreachable, ResponseTooLarge, WrongServer
from shared.json_documents import clean_text, read_document, storable
from shared.redaction import Redact

# The maximum number of characters of an error text in a log or a row, and of one that is shown.
MAX_DETAIL, MAX_SHOWN_DETAIL = 2000, 500
Uuid = Annotated[str, Field(pattern=r"^[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}$")]
# Id of an event or a page.
Name = Annotated[str, Field(pattern=r"^[!-~]{1,64}$")]
Item = TypeVar("Item")
Shape = TypeVar("Shape", bound=BaseModel)


class AgentServerResponse(NamedTuple):
    """Status and content of a response. An error response has at most `limits.MAX_ERROR_BYTES` of its content."""

    status: int
    content: bytes

    @property
    def is_success(self) -> bool:
        """Whether the server executed the request."""
        return 200 <= self.status < 300

    @property
    def detail(self) -> str:
        """The error's text for people on one line, or an empty text."""
        detail = _read_error(self.content).detail
        return clean_text(" ".join(detail.split()), MAX_SHOWN_DETAIL) or "" if isinstance(detail, str) else ""

    def require_success(self, aim: str = "respond", redact: Redact = lambda _text: "") -> bytes:
        """Return the content of a success.

        Args:
            aim: the purpose of the request, for errors, such as "start the conversation".
            redact: removes secrets from the server's error text; by default all of it.

        Raises:
            WrongServer: the server rejects the key.
            AgentServerUnreachable: a temporary error.
            AgentServerRefused: any other status that is not a success.
        """
        if self.is_success:
            return self.content
        if self.status == 401:
            raise WrongServer("the agent server rejects the sandbox's key: 401")
        text = error_text(self.content)
        detail = redact(text)[:MAX_DETAIL] if text else ""
        if self.status >= 500 or self.status == 429:
            raise AgentServerUnreachable(f"the agent server could not {aim}: {self.status} {detail}".rstrip())
        raise AgentServerRefused(aim, self.status, detail)


class ResponseReader:
    """Collects the content of one response within its limits.

    Args:
        response: the response, of which only the header has been read.
        max_bytes: limit of a success's content.

    Raises:
        WrongServer: the content is encoded.
    """

    def __init__(self, response: httpx.Response, max_bytes: int) -> None:
        self._response, self._max_bytes = response, max_bytes
        self._content, self._chunks = bytearray(), 0
        if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            raise WrongServer("the agent server's response is encoded, contrary to the request")

    def feed(self, chunk: bytes) -> bool:
        """Take the next part of the content; return whether the reader needs more.

        Raises:
            ResponseTooLarge: a success has more content than its limit, or too many chunks.
        """
        self._content += chunk
        self._chunks += 1
        if not self._response.is_success:
            return len(self._content) <= limits.MAX_ERROR_BYTES and self._chunks < limits.FREE_CHUNKS
        if len(self._content) > self._max_bytes:
            raise self._too_large(f"is larger than {self._max_bytes} bytes")
        if self._chunks > limits.FREE_CHUNKS + len(self._content) // limits.MIN_CHUNK_BYTES:
            raise self._too_large("has too many chunks")
        return True

    @property
    def received(self) -> AgentServerResponse:
        """The response as far as it was read."""
        return AgentServerResponse(self._response.status_code, bytes(self._content))

    def _too_large(self, why: str) -> ResponseTooLarge:
        beginning = bytes(self._content[: limits.MAX_BEGINNING_BYTES])
        return ResponseTooLarge(f"the agent server's response {why}", beginning)


@cache  # creating one takes 0.4 ms
def no_trust_context() -> SSLContext:
    """Return a context that trusts no certificate, and reads none from disk: agent servers have no TLS."""
    return SSLContext(PROTOCOL_TLS_CLIENT)


def read_shape(content: bytes, shape: type[Shape], max_values: int = limits.MAX_VALUES) -> tuple[Shape, Any]:
    """Parse and check the content of a response. Return the parsed `shape`, and the whole document.

    Raises:
        ValueError: the content is not JSON of that shape; the text does not quote the content.
    """
    document = read_document(content, max_values)
    try:
        return shape.model_validate(document, strict=True), document
    except ValidationError:
        raise ValueError("the document does not match the expected schema") from None


def read_beginning(content: bytes) -> dict[str, Any]:
    """Return the fields at the beginning of a JSON object that was cut; empty if the content is anything else.

    The value of the last field may be incomplete.
    """
    try:
        found = read_document(content, limits.MAX_VALUES, is_cut=True)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class FailureBody(BaseModel):
    detail: Any = None
    exception: Any = None


def error_text(content: bytes) -> str:
    """Return the error text of a response's content on one line; empty if it has none."""
    body = _read_error(content)
    texts = [_problems(body.detail), _words(body.exception)]
    return "; ".join(text for text in texts if text)


def _read_error(content: bytes) -> FailureBody:
    try:
        return read_shape(content, FailureBody)[0]
    except ValueError:
        return FailureBody()


def _problems(detail: object) -> str:
    """Return FastAPI's list of problems as one line, or the plain text of other errors."""
    if not isinstance(detail, list):
        return _words(detail)
    return "; ".join(_problem(entry) for entry in detail if isinstance(entry, dict))


def _problem(entry: dict[str, Any]) -> str:
    loc = entry.get("loc")
    names = loc if isinstance(loc, list) else []
    place = _words(".".join(str(part) for part in names if isinstance(part, str | int) and part != "body"))
    return f"{place}: {_words(entry.get('msg'))}" if place else _words(entry.get("msg"))


def _words(text: object) -> str:
    """Return a text on one line, without the shortened values that pydantic quotes: redaction can't find those."""
    if not isinstance(text, str):
        return ""
    # The pattern excludes brackets: else a text of many opening brackets would take quadratic time.
    text = re.sub(r"\[type=[^,\[\]]*, input_value=.*", "", text)
    text = re.sub(r"For further information visit \S+", "", text)
    return " ".join(storable(text).split())


# --- shapes -----------------------------------------------------------------------------------------------------------


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


class ItemPage(BaseModel, Generic[Item]):
    """A page of a list, and the id of the next page."""

    items: Annotated[list[Item], Field(max_length=limits.MAX_ITEMS)]
    next_page_id: Name | None = None


class MessageContent(BaseModel):
    """Content of a user's message: texts and images are used, other items are ignored."""

    content: Annotated[list[dict[str, Any]], Field(max_length=10_000)] = []


class MessageEvent(BaseModel):
    id: Name
    llm_message: MessageContent = MessageContent()


RunningPage = ItemPage[Running]
MessagePage = ItemPage[MessageEvent]
EventPage = ItemPage[dict[str, Any]]


class GitChanges(RootModel[list[dict[str, Any]]]):
    """Changed files; their number is limited by `limits.MAX_VALUES`."""


class GitDiff(BaseModel):
    """A file before and after its changes."""

    original: str | None
    modified: str | None


class Skills(BaseModel):
    skills: Annotated[list[dict[str, Any]], Field(max_length=limits.MAX_SKILLS)]


class Hooks(BaseModel):
    """A project's hooks by their event."""

    hook_config: Annotated[dict[str, list[Any] | None], Field(max_length=limits.MAX_HOOKS)] | None


AnyPage = TypeVar("AnyPage", bound=ItemPage[Any])

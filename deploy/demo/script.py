"""The script of a scripted model: its responses, and the choice of a response for a request."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
Message = dict[str, Any]


@dataclass(frozen=True)
class Say:
    """A plain text answer. It ends the agent server's run, as a `Finish` does."""

    text: str


@dataclass(frozen=True)
class CallTool:
    """A call of any tool with its arguments; `text` is the message's content."""

    name: str
    arguments: Json
    text: str = ""


@dataclass(frozen=True)
class RunCommand:
    """A shell command, run with the agent's `terminal` tool."""

    command: str
    summary: str = "run a shell command"

    def call(self) -> CallTool:
        """The tool call, with the three arguments that agent server 1.58.2 requires for `terminal`."""
        arguments = {"command": self.command, "summary": self.summary, "security_risk": "LOW"}
        return CallTool("terminal", arguments)


@dataclass(frozen=True)
class Finish:
    """The end of the work, with the answer for the user."""

    message: str

    def call(self) -> CallTool:
        """The call of the `finish` tool, which every agent has."""
        return CallTool("finish", {"message": self.message})


@dataclass(frozen=True)
class Fail:
    """An HTTP error instead of an answer. A retry of the same request gets the same error."""

    status: int
    message: str = "as scripted"


@dataclass(frozen=True)
class Gate:
    """A gate that blocks an agent during its run until a test opens it.

    `reached` is set when a request waits at the gate. A request that waits longer than `deadline` seconds gets a 503.
    """

    deadline: float = 60.0
    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def open(self) -> None:
        """Let every waiting and every later request pass."""
        self.opened.set()

    def passed(self) -> bool:
        """Wait until the gate is open; False after the deadline."""
        self.reached.set()
        return self.opened.wait(self.deadline)


@dataclass(frozen=True)
class Hold:
    """The answer `then`, sent when the gate is open."""

    gate: Gate
    then: "Answer"


Answer = Say | CallTool | RunCommand | Finish | Fail
Response = Answer | Hold


@dataclass(frozen=True)
class Script:
    """One model's script: its responses after each user message, and the title of conversations."""

    responses: Sequence[Response]
    title: str | None = None

    def response_to(self, request: Json) -> Response:
        """The response to a request; the same request always gets the same response.

        A request without tools is one for a title. After its last response the script finishes.
        """
        messages: list[Message] = request.get("messages") or []
        if not request.get("tools"):
            return Say(self.title or opening_words(messages))
        place = answers_since_user(messages)
        return self.responses[place] if place < len(self.responses) else Finish("The script has ended.")


def answers_since_user(messages: Sequence[Message]) -> int:
    """The number of the model's messages since the user's last one."""
    count = 0
    for message in reversed(messages):
        if message.get("role") == "user":
            break
        count += message.get("role") == "assistant"
    return count


def opening_words(messages: Sequence[Message], limit: int = 6) -> str:
    """A title: the first words of the first user message.

    Agent server 1.58.2 requests a title with that message quoted below an empty line, followed by more instructions.
    """
    text = next((text_of(message) for message in messages if message.get("role") == "user"), "")
    quoted = (text.partition("\n\n")[2] or text).partition(".Also make sure to include")[0]
    return " ".join(quoted.split()[:limit]) or "Conversation"


def text_of(message: Message) -> str:
    """The text of a message, whose content is a string or a list."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(str(item.get("text", "")) for item in content if isinstance(item, dict))

"""What a scripted model says, and how the turn for a request is chosen."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
Message = dict[str, Any]


@dataclass(frozen=True)
class Say:
    """A plain text answer. The agent server ends the run on it, as on a `Finish`."""

    text: str


@dataclass(frozen=True)
class CallTool:
    """A call of any tool, with the arguments as they are sent; `text` is said beside it."""

    name: str
    arguments: Json
    text: str = ""


@dataclass(frozen=True)
class RunCommand:
    """A shell command, run with the agent's `terminal` tool."""

    command: str
    summary: str = "run a shell command"

    def call(self) -> CallTool:
        """The tool call, with all three arguments agent server 1.58.2 asks of `terminal`."""
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
    """An HTTP error instead of an answer. A retry of the same request gets it again."""

    status: int
    message: str = "the script says so"


@dataclass(frozen=True)
class Gate:
    """Holds an agent in the middle of its run until a test opens it.

    `reached` is set when a request waits here; `deadline` is in seconds, after which a request that
    still waits is answered with 503.
    """

    deadline: float = 60.0
    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def open(self) -> None:
        """Let every waiting and every later request pass."""
        self.opened.set()

    def passed(self) -> bool:
        """Wait until the gate is open; False when the deadline came first."""
        self.reached.set()
        return self.opened.wait(self.deadline)


@dataclass(frozen=True)
class Wait:
    """Answers as `then` does, but only once the gate is open."""

    gate: Gate
    then: "Answer"


Answer = Say | CallTool | RunCommand | Finish | Fail
Turn = Answer | Wait


@dataclass(frozen=True)
class Script:
    """One model's part: its turns after each user message, and the title it gives a conversation."""

    turns: Sequence[Turn]
    title: str | None = None

    def turn_for(self, request: Json) -> Turn:
        """The turn this request asks for; the same request always gets the same turn.

        A request that offers no tools is one for a title. Past the last turn the script finishes.
        """
        messages: list[Message] = request.get("messages") or []
        if not request.get("tools"):
            return Say(self.title or opening_words(messages))
        place = answers_since_user(messages)
        return self.turns[place] if place < len(self.turns) else Finish("The script has ended.")


def answers_since_user(messages: Sequence[Message]) -> int:
    """How many answers the model has given since the user last spoke."""
    count = 0
    for message in reversed(messages):
        if message.get("role") == "user":
            break
        count += message.get("role") == "assistant"
    return count


def opening_words(messages: Sequence[Message], limit: int = 6) -> str:
    """A title: the first words of the first user message.

    Agent server 1.58.2 asks for a title with that message quoted below an empty line, and more
    instructions on its heels.
    """
    spoken = next((text_of(message) for message in messages if message.get("role") == "user"), "")
    quoted = (spoken.partition("\n\n")[2] or spoken).partition(".Also make sure to include")[0]
    return " ".join(quoted.split()[:limit]) or "Conversation"


def text_of(message: Message) -> str:
    """The text of a message, whose content is a string or a list of parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))

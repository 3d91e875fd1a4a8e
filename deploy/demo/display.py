"""Terminal output of the agent's events, and of conversations and sandboxes."""

from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from deploy.demo.script import Json

MAX_LINES = 40
FAILURES = {"AgentErrorEvent": "error", "ConversationErrorEvent": "detail", "ServerErrorEvent": "detail"}


def show_heading(console: Console, text: str) -> None:
    """Print an empty line and a heading."""
    console.print()
    console.print(Text(text, style="bold"))


def show_event(console: Console, event: Json) -> None:
    """Print one event of a conversation, unless it has nothing for a person."""
    shown = render(event)
    if shown is not None:
        console.print(Padding(shown, (0, 0, 0, 2)))


def show_fields(console: Console, fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values in two columns."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", min_width=16)
    table.add_column(overflow="fold")
    for name, value in fields:
        table.add_row(name, Text(str(value)))
    console.print(Padding(table, (0, 0, 0, 2)))


def answer_of(event: Json) -> str | None:
    """The agent's final answer, if this event contains it: a finish call or a plain message."""
    if event.get("kind") == "ActionEvent" and event.get("tool_name") == "finish":
        return str((event.get("action") or {}).get("message", ""))
    if event.get("kind") == "MessageEvent" and event.get("source") == "agent":
        return message_text(event)
    return None


def render(event: Json) -> RenderableType | None:
    """The output of an event, or None."""
    kind = event.get("kind")
    answer = answer_of(event)
    if answer is not None:
        return Panel(Text(answer), title="the agent's answer", title_align="left", border_style="green")
    if kind == "MessageEvent":
        return labelled("user", message_text(event), "cyan")
    if kind == "ActionEvent":
        return render_action(event)
    if kind == "ObservationEvent":
        return render_observation(event)
    if kind in FAILURES:
        return labelled("error", str(event.get(FAILURES[kind]) or event), "red")
    return render_state(event)


def render_action(event: Json) -> RenderableType:
    """A tool call: a shell command with a prompt, any other tool by name."""
    action = event.get("action") or {}
    summary = str(event.get("summary") or "")
    if "command" not in action or event.get("tool_name") != "terminal":
        return labelled(str(event.get("tool_name")), summary, "yellow")
    lines = labelled("agent", summary, "yellow")
    return lines.append(f"\n$ {action['command']}", style="bold")


def render_observation(event: Json) -> RenderableType | None:
    """A tool's output and exit code; None for the tool that ends the run."""
    if event.get("tool_name") == "finish":
        return None
    observation = event.get("observation") or {}
    output = shortened(content_text(observation.get("content")).rstrip())
    code = observation.get("exit_code")
    if code is None:
        return Text(output, style="dim")
    return Text(output, style="dim").append(f"\nexit code {code}", style="green" if code == 0 else "red")


def render_state(event: Json) -> RenderableType | None:
    """A change of the run's state."""
    if event.get("kind") != "ConversationStateUpdateEvent" or event.get("key") != "execution_status":
        return None
    return labelled("state", str(event.get("value")), "magenta")


def labelled(label: str, text: str, style: str) -> Text:
    """A colored label with text after it."""
    return Text(f"{label}  ", style=style).append(text, style="default")


def message_text(event: Json) -> str:
    """The text of a message event."""
    return content_text((event.get("llm_message") or {}).get("content"))


def content_text(content: object) -> str:
    """The joined texts of a content list."""
    if not isinstance(content, list):
        return str(content or "")
    return "".join(str(item.get("text", "")) for item in content if isinstance(item, dict))


def shortened(text: str) -> str:
    """The last lines of a long output, with the number of omitted lines."""
    lines = text.splitlines()
    if len(lines) <= MAX_LINES:
        return text
    return "\n".join([f"… {len(lines) - MAX_LINES} lines omitted …", *lines[-MAX_LINES:]])

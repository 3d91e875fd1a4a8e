"""Events of a conversation as lines for people. All of their text comes from a sandbox."""

import json
from collections.abc import Mapping
from typing import Any

# Events of no interest to a reader: parts of other events, and states.
SILENT = (
    "StreamingDeltaEvent",
    "TokenEvent",
    "LLMCompletionLogEvent",
    "SystemPromptEvent",
    "ConversationStateUpdateEvent",
)
FAILURES = {"AgentErrorEvent": "error", "ConversationErrorEvent": "detail", "ServerErrorEvent": "detail"}
# Fields of an action. The first one that is present describes what the agent does.
SUBJECTS = ("command", "path", "message", "query", "url", "thought")
MAX_LENGTH = 2000


def event_line(event: Mapping[str, Any]) -> str:
    """A line for an event, or several if its text has several; empty for one that is not shown."""
    kind = str(event.get("kind"))
    if kind in SILENT:
        return ""
    text = _text(kind, event)
    time = str(event.get("timestamp", ""))[11:19]
    return f"{time} {_label(kind, event)}: {text[:MAX_LENGTH]}{' …' if len(text) > MAX_LENGTH else ''}".rstrip(": ")


def _label(kind: str, event: Mapping[str, Any]) -> str:
    if kind == "MessageEvent":
        return str(event.get("source"))
    if kind in {"ActionEvent", "ObservationEvent"}:
        return f"{event.get('tool_name')}{' >' if kind == 'ActionEvent' else ' <'}"
    return "error" if kind in FAILURES else kind.removesuffix("Event")


def _text(kind: str, event: Mapping[str, Any]) -> str:
    if kind in FAILURES:
        return str(event.get(FAILURES[kind]) or "")
    if kind == "MessageEvent":
        return _content(_member(event, "llm_message").get("content"))
    if kind == "ActionEvent":
        action = _member(event, "action")
        found = next((action[name] for name in SUBJECTS if action.get(name)), None)
        return str(found) if found is not None else json.dumps(action, ensure_ascii=False)
    return _content(_member(event, "observation").get("content")) if kind == "ObservationEvent" else ""


def _member(event: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = event.get(name)
    return found if isinstance(found, Mapping) else {}


def _content(parts: Any) -> str:
    texts = [part.get("text") for part in parts or () if isinstance(part, Mapping)] if isinstance(parts, list) else []
    return "\n".join(text.rstrip() for text in texts if isinstance(text, str))

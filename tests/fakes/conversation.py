"""A conversation of the in-memory agent server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

Body = dict[str, Any]


@dataclass
class FakeConversation:
    """One conversation. Tests set the results of its agent's work."""

    id: str  # dashed
    body: Body = field(default_factory=dict)
    title: str | None = None
    execution_status: str = "idle"
    stats: Body = field(default_factory=lambda: {"usage_to_metrics": {}})
    messages: list[Body] = field(default_factory=list)
    events: list[Body] = field(default_factory=list)

    def shown(self) -> Body:
        """Return the fields of the GET response that the service reads there or in a webhook."""
        llm = self.body.get("agent_settings", {}).get("llm", {})
        said = [event["id"] for event in self.events if event["kind"] == "MessageEvent"]
        return {
            "id": self.id,
            "title": self.title,
            "execution_status": self.execution_status,
            "last_user_message_id": said[-1] if said else None,
            "agent": {"kind": "Agent", "llm": {"model": llm.get("model")}},
            "workspace": self.body.get("workspace", {}),
            "tags": self.body.get("tags", {}),
            "stats": self.stats,
            "updated_at": f"{_time_now()}Z",
        }

    def found(self, params: Mapping[str, str]) -> list[Body]:
        """Search its events."""
        wanted = {name: params[name] for name in ("kind", "source") if name in params}
        found = [event for event in self.events if wanted.items() <= event.items()]
        return found[::-1] if params.get("sort_order") == "TIMESTAMP_DESC" else found

    def take(self, message: Body) -> None:
        """Store a message, and run if the message requests it."""
        self.messages.append(message)
        self._publish("MessageEvent", "user", llm_message=message)
        if message.get("run") and self.execution_status != "running":
            self.set_status("running")

    def set_status(self, status: str) -> None:
        """Change its execution status, and publish an event."""
        self.execution_status = status
        self._publish("ConversationStateUpdateEvent", "environment", key="execution_status", value=status)

    def interrupt(self) -> None:
        """Pause it, unless its run has ended."""
        if self.execution_status in ("idle", "running"):
            self.set_status("paused")

    def _publish(self, kind: str, source: str, **fields: Any) -> None:
        event = {"id": str(uuid4()), "kind": kind, "timestamp": _time_now(), "source": source}
        self.events.append(event | fields)


def _time_now() -> str:
    """Return the time without a zone, in the agent server's format of event times."""
    return datetime.now(UTC).replace(tzinfo=None).isoformat()

"""What agent servers report in their webhooks, and what of it a conversation takes over. Pure: no store, no HTTP.

Shapes as sent by agent server 1.58.2; whatever is not known here is let through unread, so that a newer one can talk
to us too. All merging is idempotent and independent of order, because webhooks are repeated and overtake each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from shared.clock import now
from shared.conversations.usage_metrics import combine, latest
from shared.errors import Invalid
from shared.ids import parse_id
from shared.json_documents import check_document, clean_text, shorten
from shared.models import Conversation, Event
from shared.redaction import Redact, redact_document
from shared.users.mcp_config import mask_told

# `deleting` is left out: it says that the agent server forgets the conversation, and we don't (wire contract 1.11).
STATUSES = ("idle", "running", "paused", "waiting_for_confirmation", "finished", "error", "stuck")
MAX_ID_LENGTH = 64
# An event is cut to that, and not refused: its agent server would send its batch again for ever.
MAX_EVENT_BYTES = 1024 * 1024
# What every event has, and is small.
ESSENTIAL = ("id", "kind", "timestamp")
MAX_TITLE_LENGTH = 500
# No agent server is older. A time that is further ahead than its clock may honestly be is taken for now.
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
MAX_AHEAD = timedelta(seconds=20)
MAX_MODEL_LENGTH = 500
MAX_DIRECTORY_LENGTH = 1024
MAX_REASON_LENGTH = 64
MAX_DETAIL_LENGTH = 2000
# Of an agent that runs: it waits for its model, and has for long.
MODEL_SILENT = "model_silent"
MAX_TAGS = 100
MAX_TAG_LENGTH = 256


@dataclass(frozen=True)
class Report:
    """What is said of a conversation; a None says nothing."""

    # By the agent server's clock.
    at: datetime
    title: str | None = None
    execution_status: str | None = None
    metrics: dict[str, Any] | None = None
    tags: dict[str, str] = field(default_factory=dict)
    llm_model: str | None = None
    agent_kind: str | None = None
    working_dir: str | None = None
    parent_id: str | None = None
    # Why it is in error: a code, and a text for people.
    failure: tuple[str, str] | None = None

    @property
    def shows_progress(self) -> bool:
        """Whether the agent has got on, so that there may be a title by now."""
        return self.execution_status is not None


@dataclass(frozen=True)
class EventReport:
    """One event as it came, what a row needs of it, and what it says of its conversation."""

    id: str
    kind: str
    timestamp: datetime
    body: dict[str, Any]
    report: Report | None

    @property
    def is_error(self) -> bool:
        """Whether it may quote what an LLM's provider, or a tool, has said of a failure."""
        observation = self.body.get("observation")
        return self.kind.endswith("ErrorEvent") or (isinstance(observation, dict) and bool(observation.get("is_error")))

    def redacted(self, redact: Redact) -> "EventReport":
        """The same with its texts redacted."""
        return read_event(redact_document(self.body, redact))

    def as_row(self, conversation_id: str) -> Event:
        """The event, to be stored."""
        return Event(
            conversation_id=conversation_id,
            id=self.id,
            kind=self.kind,
            timestamp=self.timestamp,
            body=self.body,
        )


@dataclass(frozen=True)
class ConversationReport:
    """A conversation as its agent server describes it."""

    id: str
    report: Report


def read_event(body: Any) -> EventReport:
    """An event of a webhook, or of the agent server's own event search, no larger than `MAX_EVENT_BYTES`.

    Raises:
        ValueError: it has no usable id, kind or timestamp, or can't be kept.
    """
    if not isinstance(body, dict):
        raise ValueError("an event is an object")  # noqa: TRY004 - ValueError is what Pydantic turns into a 422
    check_document(body)
    kind, timestamp = _name(body, "kind"), _required_time(body, "timestamp")
    kept = shorten(_mask(body), MAX_EVENT_BYTES, keep=ESSENTIAL)
    return EventReport(_name(body, "id"), kind, timestamp, kept, _read_change(kind, timestamp, body))


def read_conversation(body: Any) -> ConversationReport:
    """A conversation of a webhook (`ConversationInfo`).

    Raises:
        ValueError: it has no usable id, or can't be kept.
    """
    if not isinstance(body, dict):
        raise ValueError("a conversation is an object")  # noqa: TRY004 - as above
    check_document(body)
    conversation_id = _read_uuid(body.get("id"))
    if conversation_id is None:
        raise ValueError("id: a UUID is needed")
    at = _read_time(body.get("updated_at")) or now()
    return ConversationReport(conversation_id, _read_state(body, at))


def merge(conversation: Conversation, report: Report) -> bool:
    """Take over what the report knows better.

    Returns:
        Whether anything changed; `updated_at` then says so too.
    """
    changes = {name: value for name, value in _changes(conversation, report).items() if value is not None}
    changes = {name: value for name, value in changes.items() if getattr(conversation, name) != value}
    if "execution_status" in changes:
        explain(conversation, None, None)  # it was said of what it was until now
    for name, value in changes.items():
        setattr(conversation, name, value)
    if changes:
        conversation.updated_at = now()
    return bool(changes)


def explain(conversation: Conversation, reason: str | None, detail: str | None) -> None:
    """Say why the conversation stands as it does, or that there is nothing to be said."""
    if (conversation.execution_reason, conversation.execution_detail) != (reason, detail):
        conversation.execution_reason, conversation.execution_detail = reason, detail
        conversation.updated_at = now()


def waits_since(newest: Sequence[Event]) -> datetime | None:
    """Since when an agent that runs has waited for its model; None: a tool is at work, or nobody knows.

    Args:
        newest: of its events, the newest first; those that tell of its state are of no use.
    """
    answered = {
        str(event.body.get(name))
        for event in newest
        for name in ("action_id", "tool_call_id")
        if event.kind != "ActionEvent"
    }
    calls = [event for event in newest if event.kind == "ActionEvent"]
    at_work = [call for call in calls if not {call.id, str(call.body.get("tool_call_id"))} & answered]
    return None if at_work or not newest else newest[0].timestamp


def needs_worker(conversation: Conversation, reports: list[Report]) -> bool:
    """Whether a worker must fetch the title, which no webhook carries, or stop an agent that has spent its budget."""
    untitled = not conversation.title_settled and any(report.shows_progress for report in reports)
    spent = (conversation.metrics or {}).get("accumulated_cost", 0.0)
    over = conversation.max_budget is not None and spent >= conversation.max_budget
    return untitled or (over and conversation.execution_status == "running")


def _changes(conversation: Conversation, report: Report) -> dict[str, Any]:
    moment, known_at = now(), conversation.execution_status_at
    at = min(report.at, moment)
    changes: dict[str, Any] = {
        "agent_kind": report.agent_kind,
        "working_dir": report.working_dir,
        "metrics": latest(conversation.metrics, report.metrics),
        "tags": dict(list((conversation.tags | report.tags).items())[:MAX_TAGS]),
    }
    if conversation.parent_id is None and report.parent_id != conversation.id:
        changes["parent_id"] = report.parent_id
    if report.title is not None and not conversation.title_settled:
        changes |= {"title": report.title, "title_settled": True}
    # A time in the future is a wrong clock's, or a lie: no report could be newer than it.
    if known_at is None or at >= known_at or known_at > moment:
        changes["llm_model"] = report.llm_model
        if report.execution_status is not None:
            changes |= {"execution_status": report.execution_status, "execution_status_at": at}
        if report.failure is not None:
            changes["execution_reason"], changes["execution_detail"] = report.failure
    return changes


def _mask(body: dict[str, Any]) -> dict[str, Any]:
    """The event without what the agent server shows in clear: credentials in the URLs of MCP servers."""
    match body:
        case {"key": "full_state", "value": {"agent": {"mcp_config": {**servers}} as agent} as state}:
            return body | {"value": state | {"agent": agent | {"mcp_config": mask_told(servers)}}}
        case {"key": "agent", "value": {"mcp_config": {**servers}} as agent}:
            return body | {"value": agent | {"mcp_config": mask_told(servers)}}
    return body


def _read_change(kind: str, at: datetime, body: dict[str, Any]) -> Report | None:
    if kind == "ObservationEvent":
        return _read_switch(body.get("observation"), at)
    if kind == "ConversationErrorEvent":
        return Report(at=at, execution_status="error", failure=_read_failure(body))
    return _read_update(at, body) if kind == "ConversationStateUpdateEvent" else None


def _read_update(at: datetime, body: dict[str, Any]) -> Report | None:
    value = body.get("value")
    match body.get("key"):
        case "full_state" if isinstance(value, dict):
            return _read_state(value, at)
        case "execution_status":
            return Report(at=at, execution_status=_read_status(value))
        case "stats":
            return Report(at=at, metrics=combine(value))
    return None


def _read_switch(observation: Any, at: datetime) -> Report | None:
    """An agent may switch its own model: both tools that do so name the model that is active now."""
    kinds = ("SwitchLLMObservation", "ClassifyAndSwitchLLMObservation")
    if not isinstance(observation, dict) or observation.get("kind") not in kinds or observation.get("is_error"):
        return None
    return Report(at=at, llm_model=clean_text(observation.get("active_model"), MAX_MODEL_LENGTH))


def _read_failure(body: dict[str, Any]) -> tuple[str, str]:
    reason = clean_text(body.get("code"), MAX_REASON_LENGTH) or "unknown"
    return reason, clean_text(body.get("detail"), MAX_DETAIL_LENGTH) or "the agent server does not say why"


def _read_state(state: dict[str, Any], at: datetime) -> Report:
    agent = _object(state.get("agent"))
    return Report(
        at=at,
        title=clean_text(state.get("title"), MAX_TITLE_LENGTH),
        execution_status=_read_status(state.get("execution_status")),
        metrics=combine(state.get("stats")),
        tags=_read_tags(state.get("tags")),
        llm_model=clean_text(_object(agent.get("llm")).get("model"), MAX_MODEL_LENGTH),
        agent_kind={"Agent": "openhands", "ACPAgent": "acp"}.get(str(agent.get("kind"))),
        working_dir=clean_text(_object(state.get("workspace")).get("working_dir"), MAX_DIRECTORY_LENGTH),
        parent_id=_read_uuid(state.get("parent_conversation_id")),
    )


def _read_status(value: Any) -> str | None:
    return value if isinstance(value, str) and value in STATUSES else None


def _read_tags(value: Any) -> dict[str, str]:
    read = {clean_text(name, MAX_TAG_LENGTH): clean_text(text, MAX_TAG_LENGTH) for name, text in _object(value).items()}
    return {name: text for name, text in read.items() if name is not None and text is not None}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _name(body: dict[str, Any], key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= MAX_ID_LENGTH:
        raise ValueError(f"{key}: a text of 1 to {MAX_ID_LENGTH} printable characters is needed")
    return value


def _read_uuid(value: Any) -> str | None:
    try:
        return parse_id(value) if isinstance(value, str) else None
    except Invalid:
        return None


def _required_time(body: dict[str, Any], key: str) -> datetime:
    time = _read_time(body.get(key))
    if time is None:
        raise ValueError(f"{key}: an ISO 8601 time is needed")
    return time


def _read_time(value: Any) -> datetime | None:
    """A time in UTC within reason; one without a zone is the container's local time, which is UTC."""
    try:
        time = datetime.fromisoformat(value)
        time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return None
    # Else a status from the year 9999 would never be followed by another one.
    return max(time, EARLIEST) if time <= (current := now()) + MAX_AHEAD else current

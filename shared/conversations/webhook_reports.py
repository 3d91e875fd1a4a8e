"""Reports in the webhooks of agent servers, and how they merge into a conversation. Pure: no store, no HTTP.

The shapes are those of agent server 1.58.2. Unknown fields are not interpreted, so that newer agent servers work too.
Merging is idempotent and independent of order, because webhooks are repeated and overtake each other. Tags are not: no
report has the time of their last change, so the values that arrive last are stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from shared.clock import now
from shared.conversations.report_values import (
    MAX_ID_LENGTH,
    as_object,
    limit_tags,
    mask_event,
    read_failure,
    read_status,
    read_tags,
    read_time,
    read_uuid,
    require_name,
    require_time,
)
from shared.conversations.usage_metrics import combine, latest
from shared.json_documents import check_document, clean_text, shorten
from shared.models import Conversation, Event
from shared.redaction import Redact, redact_document

# A larger event is shortened, not rejected: its agent server would repeat a rejected batch indefinitely, and send none
# of the later events. So is one that is nested too deep.
MAX_EVENT_BYTES = 1024 * 1024
# What remains of an event otherwise: its required fields, and those that name the tool's call that it begins or ends.
ESSENTIAL = ("id", "kind", "timestamp", "source", "action_id", "tool_call_id")
MAX_TITLE_LENGTH = 500
MAX_MODEL_LENGTH = 500
MAX_DIRECTORY_LENGTH = 1024
# The reason of a running agent that has been waiting for its model for a long time.
MODEL_SILENT = "model_silent"
# The reason of an agent that ran on a lost node, and whose sandbox was recreated on another one.
NODE_LOST = "node_lost"
# The reason of an agent that ran when the files of its sandbox were removed outside this service.
CONVERSATION_LOST = "conversation_lost"
# The reason of a conversation whose events exceed a quota of its owner.
EVENTS_REFUSED = "events_refused"
# The kinds of events that name a tool's call and do not end it: a hook may run before the tool.
NO_RESULTS = ("ActionEvent", "HookExecutionEvent")
# The agent SDK's tags of a conversation that an automation has started.
AUTOMATION_TAGS = frozenset({"automationtrigger", "automationid", "automationrunid"})


@dataclass(frozen=True)
class Report:
    """Reported values of a conversation; None where the report has no value."""

    # The time of the report, by the agent server's clock.
    at: datetime
    title: str | None = None
    execution_status: str | None = None
    metrics: dict[str, Any] | None = None
    tags: dict[str, str] = field(default_factory=dict)
    llm_model: str | None = None
    agent_kind: str | None = None
    working_dir: str | None = None
    parent_id: str | None = None
    # The reason of an error: a code, and a text for people.
    failure: tuple[str, str] | None = None

    @property
    def shows_progress(self) -> bool:
        """Whether the agent has progressed, so that a title may exist now."""
        return self.execution_status is not None


@dataclass(frozen=True)
class EventReport:
    """One received event, the columns of its row, and its report on the conversation."""

    id: str
    kind: str
    timestamp: datetime
    body: dict[str, Any]
    report: Report | None

    @property
    def is_error(self) -> bool:
        """Whether the event may quote an error text of an LLM provider or a tool."""
        observation = self.body.get("observation")
        return self.kind.endswith("ErrorEvent") or (isinstance(observation, dict) and bool(observation.get("is_error")))

    def redacted(self, redact: Redact) -> "EventReport":
        return read_event(redact_document(self.body, redact))

    def as_row(self, conversation_id: str) -> Event:
        return Event(
            conversation_id=conversation_id,
            id=self.id,
            kind=self.kind,
            timestamp=self.timestamp,
            body=self.body,
        )


@dataclass(frozen=True)
class ConversationReport:
    """An agent server's description of a conversation."""

    id: str
    report: Report


def read_event(body: Any) -> EventReport:
    """An event of a webhook or of the agent server's event search, shortened to `MAX_EVENT_BYTES`.

    Raises:
        ValueError: the event has no usable id, kind or timestamp.
    """
    if not isinstance(body, dict):
        raise ValueError("an event is an object")  # noqa: TRY004 - ValueError is what Pydantic turns into a 422
    kind, timestamp = require_name(body, "kind"), require_time(body, "timestamp")
    masked = mask_event(_make_storable(body))
    body_to_store = shorten(masked, MAX_EVENT_BYTES, otherwise=_keep_essential(body))
    return EventReport(require_name(body, "id"), kind, timestamp, body_to_store, _read_change(kind, timestamp, body))


def read_conversation(body: Any) -> ConversationReport:
    """A conversation of a webhook (`ConversationInfo`).

    Raises:
        ValueError: the conversation has no usable id, or can't be stored.
    """
    if not isinstance(body, dict):
        raise ValueError("a conversation is an object")  # noqa: TRY004 - as above
    check_document(body)
    conversation_id = read_uuid(body.get("id"))
    if conversation_id is None:
        raise ValueError("id: a UUID is needed")
    at = read_time(body.get("updated_at")) or now()
    return ConversationReport(conversation_id, read_state(body, at))


def merge(conversation: Conversation, report: Report) -> bool:
    """Merge the newer values of the report into the conversation.

    Returns:
        Whether anything changed; `updated_at` is set then.
    """
    changes = {name: value for name, value in _changes(conversation, report).items() if value is not None}
    changes = {name: value for name, value in changes.items() if getattr(conversation, name) != value}
    if "execution_status" in changes:
        explain(conversation, None, None)  # the stored reason belongs to the previous status
    for name, value in changes.items():
        setattr(conversation, name, value)
    if changes:
        conversation.updated_at = now()
    return bool(changes)


def explain_refusal(conversation: Conversation, detail: str | None) -> None:
    """Record why events are not stored, unless a reason other than `MODEL_SILENT` is set. None: they are stored."""
    if detail is None and conversation.execution_reason == EVENTS_REFUSED:
        explain(conversation, None, None)
    elif detail is not None and conversation.execution_reason in (None, EVENTS_REFUSED, MODEL_SILENT):
        explain(conversation, EVENTS_REFUSED, detail)


def end_lost_run(conversation: Conversation, reason: str, detail: str) -> None:
    """Record that a running agent was lost with its files: its new agent server does not know the conversation."""
    conversation.execution_status, conversation.execution_status_at = "error", now()
    explain(conversation, reason, detail)


def clear_status(conversation: Conversation) -> None:
    """Remove the execution status with its reason: a deleted conversation has none."""
    conversation.execution_status = None
    explain(conversation, None, None)


def explain(conversation: Conversation, reason: str | None, detail: str | None) -> None:
    """Set the reason and the detail of the conversation's execution status; None clears them."""
    if (conversation.execution_reason, conversation.execution_detail) != (reason, detail):
        conversation.execution_reason, conversation.execution_detail = reason, detail
        conversation.updated_at = now()


def waits_since(newest: Sequence[Event]) -> datetime | None:
    """The time since which a running agent has been waiting for its model.

    Args:
        newest: the newest events of the conversation, newest first, without state updates.

    Returns:
        None if a tool is running, or there is no event.
    """
    return None if not newest or has_running_tool(newest) else newest[0].timestamp


def has_running_tool(newest: Sequence[Event]) -> bool:
    """Whether a tool of a running agent has not ended. `newest`: as for `waits_since`."""
    completed = {
        value
        for event in newest
        for name in ("action_id", "tool_call_id")
        if event.kind not in NO_RESULTS and isinstance(value := event.body.get(name), str)
    }
    calls = [event for event in newest if event.kind == "ActionEvent"]
    return any(completed.isdisjoint([call.id, str(call.body.get("tool_call_id"))]) for call in calls)


def needs_worker(conversation: Conversation, reports: list[Report]) -> bool:
    """Whether a worker must fetch the title, which no webhook has, or stop an agent that has spent its budget."""
    untitled = not conversation.title_settled and any(report.shows_progress for report in reports)
    spent = (conversation.metrics or {}).get("accumulated_cost", 0.0)
    over = conversation.max_budget is not None and spent >= conversation.max_budget
    return untitled or (over and conversation.execution_status == "running")


def _make_storable(body: dict[str, Any]) -> dict[str, Any]:
    """The event, or its essential fields if it can't be stored: an agent chooses the arguments of its tools."""
    try:
        check_document(body)
    except ValueError:
        return _keep_essential(body)
    return body


def _keep_essential(body: dict[str, Any]) -> dict[str, Any]:
    texts = {name: text for name in ESSENTIAL if isinstance(text := body.get(name), str)}
    return {name: text for name, text in texts.items() if len(text) <= MAX_ID_LENGTH}


def _changes(conversation: Conversation, report: Report) -> dict[str, Any]:
    moment, known_at = now(), conversation.execution_status_at
    at = min(report.at, moment)
    changes: dict[str, Any] = {
        "agent_kind": report.agent_kind,
        "working_dir": report.working_dir,
        "metrics": latest(conversation.metrics, report.metrics),
        "tags": limit_tags(conversation.tags | report.tags),
    }
    if conversation.parent_id is None and report.parent_id != conversation.id:
        changes["parent_id"] = report.parent_id
    if report.title is not None and not conversation.title_settled:
        changes |= {"title": report.title, "title_settled": True}
    if conversation.trigger is None and report.tags.keys() & AUTOMATION_TAGS:
        changes["trigger"] = "automation"
    # A stored time in the future is wrong or forged: no report could be newer, so any report replaces it.
    if known_at is None or at >= known_at or known_at > moment:
        changes["llm_model"] = report.llm_model
        if report.execution_status is not None:
            changes |= {"execution_status": report.execution_status, "execution_status_at": at}
        if report.failure is not None:
            changes["execution_reason"], changes["execution_detail"] = report.failure
    return changes


def _read_change(kind: str, at: datetime, body: dict[str, Any]) -> Report | None:
    if kind == "ObservationEvent":
        return _read_switch(body.get("observation"), at)
    if kind == "ConversationErrorEvent":
        return Report(at=at, execution_status="error", failure=read_failure(body))
    return _read_update(at, body) if kind == "ConversationStateUpdateEvent" else None


def _read_update(at: datetime, body: dict[str, Any]) -> Report | None:
    value = body.get("value")
    match body.get("key"):
        case "full_state" if isinstance(value, dict):
            return read_state(value, at)
        case "execution_status":
            return Report(at=at, execution_status=read_status(value))
        case "stats":
            return Report(at=at, metrics=combine(value))
    return None


def _read_switch(observation: Any, at: datetime) -> Report | None:
    """The model after the agent has switched it. Both tools that switch the model report the active one."""
    kinds = ("SwitchLLMObservation", "ClassifyAndSwitchLLMObservation")
    if not isinstance(observation, dict) or observation.get("kind") not in kinds or observation.get("is_error"):
        return None
    return Report(at=at, llm_model=clean_text(observation.get("active_model"), MAX_MODEL_LENGTH))


def read_state(state: dict[str, Any], at: datetime) -> Report:
    agent = as_object(state.get("agent"))
    return Report(
        at=at,
        title=clean_text(state.get("title"), MAX_TITLE_LENGTH),
        execution_status=read_status(state.get("execution_status")),
        metrics=combine(state.get("stats")),
        tags=read_tags(state.get("tags")),
        llm_model=clean_text(as_object(agent.get("llm")).get("model"), MAX_MODEL_LENGTH),
        agent_kind={"Agent": "openhands", "ACPAgent": "acp"}.get(str(agent.get("kind"))),
        working_dir=clean_text(as_object(state.get("workspace")).get("working_dir"), MAX_DIRECTORY_LENGTH),
        parent_id=read_uuid(state.get("parent_conversation_id")),
    )

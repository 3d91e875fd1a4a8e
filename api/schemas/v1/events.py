"""Events on the wire: each is the object that the agent server sent."""

from collections.abc import Sequence
from enum import StrEnum

from fastapi import Response

from api.schemas.page_text import write_items, write_list
from shared.json_documents import write_document
from shared.models import Event
from shared.sql.pagination import Page


class EventKind(StrEnum):
    """Kinds of events of agent server 1.58.2."""

    ACTION = "ActionEvent"
    ACP_TOOL_CALL = "ACPToolCallEvent"
    AGENT_ERROR = "AgentErrorEvent"
    CONDENSATION = "Condensation"
    CONDENSATION_REQUEST = "CondensationRequest"
    CONDENSATION_SUMMARY = "CondensationSummaryEvent"
    CONVERSATION_ERROR = "ConversationErrorEvent"
    CONVERSATION_STATE_UPDATE = "ConversationStateUpdateEvent"
    HOOK_EXECUTION = "HookExecutionEvent"
    INTERRUPT = "InterruptEvent"
    LLM_COMPLETION_LOG = "LLMCompletionLogEvent"
    MESSAGE = "MessageEvent"
    OBSERVATION = "ObservationEvent"
    PAUSE = "PauseEvent"
    SECURITY_ANALYSIS = "SecurityAnalysisEvent"
    SERVER_ERROR = "ServerErrorEvent"
    STREAMING_DELTA = "StreamingDeltaEvent"
    SYSTEM_PROMPT = "SystemPromptEvent"
    TOKEN = "TokenEvent"  # noqa: S105 - a kind of event
    USER_REJECT = "UserRejectObservation"


class EventOrder(StrEnum):
    """Order by the agent server's time, oldest or newest first."""

    TIMESTAMP = "TIMESTAMP"
    TIMESTAMP_DESC = "TIMESTAMP_DESC"


def serialize_events(events: Sequence[Event | None]) -> Response:
    """Show events in order, with null for unknown ones."""
    return write_list(map(_write, events))


def serialize_event_page(page: Page[Event]) -> Response:
    """Show a page of events."""
    return write_items(map(_write, page.items), page.next_page_id)


def _write(event: Event | None) -> bytes:
    # Each event is encoded unchanged, in a call of its own: encoding a whole page in one call would delay other
    # requests. In ASCII, because half a surrogate pair in an agent's output has an escape, but no UTF-8.
    return write_document(event and event.body).encode()

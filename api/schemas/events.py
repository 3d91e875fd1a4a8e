"""Events on the wire: each is the object its agent server sent."""

import json
from enum import StrEnum
from typing import Any

from fastapi.responses import JSONResponse

from shared.models import Event
from shared.store.pages import Page


class EventKind(StrEnum):
    """The kinds of events of agent server 1.58.2."""

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
    """By the agent server's time, oldest or newest first."""

    TIMESTAMP = "TIMESTAMP"
    TIMESTAMP_DESC = "TIMESTAMP_DESC"


class EventResponse(JSONResponse):
    """Events as they were received: even a broken character in an agent's output comes back as it went in."""

    def render(self, content: Any) -> bytes:
        """In ASCII: half a surrogate pair has an escape, but no UTF-8."""
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def show_events(events: list[Event | None]) -> EventResponse:
    """Events in order, null for an unknown one."""
    return EventResponse([event and event.body for event in events])


def show_event_page(page: Page[Event]) -> EventResponse:
    """A page of events."""
    items = [event.body for event in page.items]
    return EventResponse({"items": items, "next_page_id": page.next_page_id})

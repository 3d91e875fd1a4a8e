"""Bodies of webhooks. They may be large, so a thread parses them, one event at a time."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError

from api.errors.handlers import validation_entry
from api.json_cuts import reduce_object
from api.json_text import LongNumber, TooManyValues, check_tokens, in_thread_if_large, load, split_list
from shared.conversations.webhook_reports import ConversationReport, EventReport, read_conversation, read_event

# More events than an agent server queues.
MAX_EVENTS = 20_000
# Max size of a parsed document. A larger event is reduced, not rejected: its agent server would resend it forever.
MAX_DOCUMENT_BYTES = 4 * 1024 * 1024
# Tokens of a conversation, of which the API needs a few fields. No agent has as many in its settings and tools. Most of
# the time that a document costs is for its tokens.
MAX_CONVERSATION_TOKENS = 1_000_000
OBJECT = {"type": "object", "additionalProperties": True}
INVALID = {"$ref": "#/components/schemas/HTTPValidationError"}

Report = TypeVar("Report")


def describe(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the `openapi_extra` of a route whose body has this schema."""
    invalid = {"description": "Validation Error", "content": {"application/json": {"schema": INVALID}}}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {"requestBody": body, "responses": {"422": invalid}}


CONVERSATION = describe(OBJECT)
EVENTS = describe({"type": "array", "items": OBJECT, "maxItems": MAX_EVENTS})


async def _parse_conversation(request: Request) -> ConversationReport:
    body = await request.body()
    return await in_thread_if_large(body, _read_conversation, body)


async def _parse_events(request: Request) -> list[EventReport]:
    body = await request.body()
    return await in_thread_if_large(body, _read_events, body)


ReportedConversation = Annotated[ConversationReport, Depends(_parse_conversation)]
ReportedEvents = Annotated[list[EventReport], Depends(_parse_events)]


def _read_conversation(body: bytes) -> ConversationReport:
    try:
        check_tokens(body, MAX_CONVERSATION_TOKENS)
    except TooManyValues as error:
        raise _invalid(str(error)) from None
    return _read(read_conversation, body)


def _read_events(body: bytes) -> list[EventReport]:
    events: list[EventReport] = []
    try:
        for element in split_list(body):
            events.append(_read(read_event, element, str(len(events))))
            if len(events) > MAX_EVENTS:
                raise ValueError(f"there are more than {MAX_EVENTS} events")
    except ValueError as error:
        raise _invalid(str(error)) from None
    return events


def _read(read: Callable[[Any], Report], text: bytes, *place: str) -> Report:
    try:
        return read(_load(text))
    except json.JSONDecodeError as error:
        raise _invalid(f"not JSON: {error.msg}", *place) from None
    except RecursionError:
        raise _invalid("nested too deep", *place) from None
    except ValueError as error:
        raise _invalid(str(error), *place) from None


def _load(text: bytes) -> Any:
    """Parse a document; reduce it first if it is too large to parse, or has a number with too many digits."""
    if len(text) <= MAX_DOCUMENT_BYTES:
        with suppress(TooManyValues, LongNumber):
            return load(text)
    return load(reduce_object(text, MAX_DOCUMENT_BYTES))


def _invalid(message: str, *place: str) -> RequestValidationError:
    return RequestValidationError([validation_entry(("body", *place), message)])

"""The bodies of webhooks: they may be large, so they are parsed in a thread, and event by event."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError

from api.errors.handlers import validation_entry
from api.json_cuts import reduce_object
from api.json_text import TooManyValues, in_thread_if_large, load, split_list
from shared.conversations.webhook_reports import ConversationReport, EventReport, read_conversation, read_event

# More than an agent server keeps in its queue.
MAX_EVENTS = 20_000
# Of one document as it is parsed. An event is cut to less afterwards, and not refused: it would be sent for ever.
MAX_DOCUMENT_BYTES = 4 * 1024 * 1024
OBJECT = {"type": "object", "additionalProperties": True}
WRONG = {"$ref": "#/components/schemas/HTTPValidationError"}

Report = TypeVar("Report")


def describe(schema: dict[str, Any]) -> dict[str, Any]:
    """The `openapi_extra` of a route that reads such a body."""
    wrong = {"description": "Validation Error", "content": {"application/json": {"schema": WRONG}}}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {"requestBody": body, "responses": {"422": wrong}}


CONVERSATION = describe(OBJECT)
EVENTS = describe({"type": "array", "items": OBJECT, "maxItems": MAX_EVENTS})


async def _parse_conversation(request: Request) -> ConversationReport:
    body = await request.body()
    return await in_thread_if_large(body, _read, read_conversation, body)


async def _parse_events(request: Request) -> list[EventReport]:
    body = await request.body()
    return await in_thread_if_large(body, _read_events, body)


ToldConversation = Annotated[ConversationReport, Depends(_parse_conversation)]
ToldEvents = Annotated[list[EventReport], Depends(_parse_events)]


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
    """What a document reports.

    Raises:
        RequestValidationError: it reports nothing, or can't be kept.
    """
    try:
        return read(_load(text))
    except json.JSONDecodeError as error:
        raise _invalid(f"this is no JSON: {error.msg}", *place) from None
    except RecursionError:
        raise _invalid("nested too deep", *place) from None
    except ValueError as error:
        raise _invalid(str(error), *place) from None


def _load(text: bytes) -> Any:
    """The document; one that is too large to be parsed is reduced before."""
    if len(text) <= MAX_DOCUMENT_BYTES:
        with suppress(TooManyValues):
            return load(text)
    return load(reduce_object(text, MAX_DOCUMENT_BYTES))


def _invalid(message: str, *place: str) -> RequestValidationError:
    return RequestValidationError([validation_entry(("body", *place), message)])

"""Types that all request and response bodies share."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, PlainSerializer, WithJsonSchema

from shared.states import Stage

Item = TypeVar("Item")


def _write_time(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def one_of(words: Iterable[str]) -> WithJsonSchema:
    """List the possible values in the OpenAPI document. Nothing is checked: the values were checked on the way in."""
    return WithJsonSchema({"type": "string", "enum": list(words)})


# ISO 8601, UTC, microseconds, `Z` (wire contract, section 0).
Time = Annotated[
    datetime,
    PlainSerializer(_write_time, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}, mode="serialization"),
]
SandboxStatus = Annotated[str, one_of(("STARTING", "RUNNING", "PAUSED", "ERROR", "MISSING"))]
StartTaskStatus = Annotated[str, one_of(Stage)]
ExecutionStatus = Annotated[
    str,
    one_of(("idle", "running", "paused", "waiting_for_confirmation", "finished", "error", "stuck", "deleting")),
]


class Success(BaseModel):
    """The response to a command."""

    success: bool = True


class PageOf(BaseModel, Generic[Item]):
    """One page of a list; `next_page_id` is opaque, and null on the last page."""

    items: list[Item]
    next_page_id: str | None = None

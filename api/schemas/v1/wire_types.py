"""Types that every wire shape uses."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, PlainSerializer, WithJsonSchema

from shared.states import Stage

Item = TypeVar("Item")


def _write_time(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def one_of(words: Iterable[str]) -> WithJsonSchema:
    """Tells clients which words there are. It checks nothing: what is shown was checked when it came in."""
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
    """The answer of a command."""

    success: bool = True


class PageOf(BaseModel, Generic[Item]):
    """One page; `next_page_id` is opaque, null on the last one."""

    items: list[Item]
    next_page_id: str | None = None

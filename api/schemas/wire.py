"""Types that every wire shape uses."""

from datetime import UTC, datetime
from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, PlainSerializer

Item = TypeVar("Item")


def _write_time(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


# ISO 8601, UTC, microseconds, `Z` (wire contract, section 0).
Time = Annotated[datetime, PlainSerializer(_write_time, return_type=str)]


class Success(BaseModel):
    """The answer of a command."""

    success: bool = True


class PageOf(BaseModel, Generic[Item]):
    """One page; `next_page_id` is opaque, null on the last one."""

    items: list[Item]
    next_page_id: str | None = None

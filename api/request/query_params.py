"""Query parameters that routes share."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import Query
from pydantic import AfterValidator, BeforeValidator, Field

from shared.ids import parse_id


def _in_utc(time: datetime) -> datetime:
    """Return a time in UTC. A time without a zone is in UTC already."""
    try:
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except OverflowError:
        raise ValueError("this time is out of range in UTC") from None


# A limit above 100, or of zero, is a 422 (wire contract, section 0).
Limit = Annotated[int, Query(gt=0, le=100, description="Maximum number of items in the page")]
# An empty one means the first page, as in V1.
PageId = Annotated[
    Annotated[str, Field(max_length=8192)] | None,
    BeforeValidator(lambda page_id: page_id or None),
    Query(description="`next_page_id` of the previous page"),
]
# A malformed id is a 400, in a path and in a query.
RowId = Annotated[str, AfterValidator(parse_id)]
Ids = list[Annotated[str, Query(max_length=256)]]
Since = Annotated[datetime, AfterValidator(_in_utc)]

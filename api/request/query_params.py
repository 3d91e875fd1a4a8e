"""Query parameters that several routes share."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import Query
from pydantic import AfterValidator

from shared.ids import parse_id


def _in_utc(time: datetime) -> datetime:
    """A time in UTC; one without a zone is in UTC already."""
    try:
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except OverflowError:
        raise ValueError("in UTC this time is out of range") from None


# More than 100, or none at all, is a 422 (wire contract, section 0).
Limit = Annotated[int, Query(gt=0, le=100, description="Most items in the page")]
PageId = Annotated[str | None, Query(max_length=8192, description="next_page_id of the page before")]
# A malformed one is a 400, in a path as in a query.
RowId = Annotated[str, AfterValidator(parse_id)]
Ids = list[Annotated[str, Query(max_length=256)]]
Since = Annotated[datetime, AfterValidator(_in_utc)]

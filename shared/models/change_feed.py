"""What has changed for each user, in the order in which it became so."""

from datetime import datetime

from sqlalchemy import BigInteger
from sqlmodel import Field, SQLModel

from shared.clock import now
from shared.models.columns import UtcDateTime

# Neither table refers to the user: that check would lock a row which others lock first, before they lock a sandbox.


class ChangeFeed(SQLModel, table=True):
    """A user's log. Whoever appends to it holds this row until the commit: so numbers become visible in order."""

    __tablename__ = "change_log"

    owner_id: str = Field(primary_key=True, max_length=32)
    # The number of the newest entry.
    last: int = Field(sa_type=BigInteger)


class ChangeEntry(SQLModel, table=True):
    """One row of the user's that changed, and what it was after that. Ids and states only."""

    __tablename__ = "change_entry"

    owner_id: str = Field(primary_key=True, max_length=32)
    # From 1 on, without gaps.
    number: int = Field(primary_key=True, sa_type=BigInteger)
    kind: str = Field(max_length=16)
    row_id: str = Field(max_length=32)
    status: str | None = Field(default=None, max_length=32)
    at: datetime = Field(default_factory=now, index=True, sa_type=UtcDateTime)

"""The change feed, each user's changes in the order of their commits, and the versions of users' lists."""

from datetime import datetime

from sqlalchemy import BigInteger
from sqlmodel import Field, SQLModel

from shared.clock import now
from shared.models.columns import UtcDateTime

# Stored in place of an owner's id: the version of what the lists of all owners depend on, the deadlines of the specs.
ALL_OWNERS = "*"
# No table here has a foreign key to the user: its check would lock the user's row after a sandbox's row, against the
# lock order (`shared.sql.locks`).


class ChangeFeed(SQLModel, table=True):
    """A user's feed. An appending transaction locks this row until its commit, so numbers become visible in order."""

    __tablename__ = "change_log"

    owner_id: str = Field(primary_key=True, max_length=32)
    # The number of the newest entry.
    last: int = Field(sa_type=BigInteger)


class ChangeEntry(SQLModel, table=True):
    """One changed row of the user, with its state after the change. Ids and states only."""

    __tablename__ = "change_entry"

    owner_id: str = Field(primary_key=True, max_length=32)
    # Starts at 1, without gaps.
    number: int = Field(primary_key=True, sa_type=BigInteger)
    kind: str = Field(max_length=16)
    row_id: str = Field(max_length=32)
    status: str | None = Field(default=None, max_length=32)
    at: datetime = Field(default_factory=now, index=True, sa_type=UtcDateTime)


class ListVersion(SQLModel, table=True):
    """A text that differs after each transaction that changes anything in the owner's lists.

    The database's triggers write it at the end of the transaction, for every writer of the rows (decision 25). It is
    random, not a counter: a database restored from a backup never repeats a version.
    """

    __tablename__ = "list_version"

    owner_id: str = Field(primary_key=True, max_length=32)
    version: str = Field(max_length=32)

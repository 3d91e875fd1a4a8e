"""The columns of a leased row."""

from datetime import datetime

from sqlalchemy import Index
from sqlmodel import Field, SQLModel

from shared.models.columns import UtcDateTime, partial_index


class Leased(SQLModel):
    """A lease, its fencing token, and the time at which the row is due (see `shared.leasing.leases`)."""

    lease_owner: str | None = Field(default=None, max_length=128)
    lease_until: datetime | None = Field(default=None, sa_type=UtcDateTime)
    # The fencing token. Each claim increments it; a write with an old token changes nothing.
    fence: int = 0
    # Failed attempts since the last success.
    attempt: int = 0
    # When a worker must run the row; empty if there is nothing to do.
    due_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


def leased_indexes(table: str) -> tuple[Index, Index]:
    """The indexes of the sweep. They hold only rows that are due or leased."""
    return (
        partial_index(f"ix_{table}_due_at", "due_at", where="due_at IS NOT NULL"),
        partial_index(f"ix_{table}_lease_until", "lease_until", where="lease_until IS NOT NULL"),
    )

"""The columns of a leased row."""

from datetime import datetime

from sqlalchemy import Index, text
from sqlmodel import Field, SQLModel

from shared.models.columns import UtcDateTime


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
    due, held = text("due_at IS NOT NULL"), text("lease_until IS NOT NULL")
    return (
        Index(f"ix_{table}_due_at", "due_at", sqlite_where=due, postgresql_where=due),
        Index(f"ix_{table}_lease_until", "lease_until", sqlite_where=held, postgresql_where=held),
    )

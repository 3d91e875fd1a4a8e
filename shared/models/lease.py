"""The columns of a row that workers take turns on."""

from datetime import datetime

from sqlalchemy import Index, text
from sqlmodel import Field, SQLModel

from shared.models.columns import UtcDateTime


class Leased(SQLModel):
    """A lease, its fence, and the time the row next needs a hand (see `shared.leasing.leases`)."""

    lease_owner: str | None = Field(default=None, max_length=128)
    lease_until: datetime | None = Field(default=None, sa_type=UtcDateTime)
    # Grows with each claim: a write that shows an old fence changes nothing.
    fence: int = 0
    # Failed tries since the last success.
    attempt: int = 0
    # When a worker must look at the row; empty when nothing is to be done.
    due_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


def leased_indexes(table: str) -> tuple[Index, Index]:
    """What the sweep reads: both indexes hold only the rows that need a hand."""
    due, held = text("due_at IS NOT NULL"), text("lease_until IS NOT NULL")
    return (
        Index(f"ix_{table}_due_at", "due_at", sqlite_where=due, postgresql_where=due),
        Index(f"ix_{table}_lease_until", "lease_until", sqlite_where=held, postgresql_where=held),
    )

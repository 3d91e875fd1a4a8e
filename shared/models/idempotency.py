"""Stored responses for repeated requests with an idempotency key."""

from datetime import datetime
from typing import Any

from sqlalchemy import UniqueConstraint
from sqlmodel import Field, SQLModel

from shared.clock import now
from shared.ids import new_id
from shared.models.columns import Json, UtcDateTime


class IdempotencyKey(SQLModel, table=True):
    """A request executed under a client's idempotency key, with its response."""

    __tablename__ = "idempotency_key"
    __table_args__ = (UniqueConstraint("owner_id", "operation", "key"),)

    id: str = Field(default_factory=new_id, primary_key=True, max_length=32)
    owner_id: str = Field(foreign_key="user.id", max_length=32)
    # Method and path.
    operation: str = Field(max_length=200)
    key: str = Field(max_length=200)
    # Keyed digest of the whole request: its body may hold secrets that are short enough to guess.
    fingerprint: str = Field(max_length=64)
    status: int
    # The response as sent: it holds no plaintext secret.
    answer: dict[str, Any] = Field(sa_type=Json)
    created_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)
    expires_at: datetime = Field(index=True, sa_type=UtcDateTime)

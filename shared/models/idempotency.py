"""Answers that are kept for a client that asks again."""

from datetime import datetime
from typing import Any

from sqlalchemy import UniqueConstraint
from sqlmodel import Field, SQLModel

from shared.clock import now
from shared.ids import new_id
from shared.models.columns import Json, UtcDateTime


class IdempotencyKey(SQLModel, table=True):
    """A request that was carried out under a key of the client's choice, and what was answered."""

    __tablename__ = "idempotency_key"
    __table_args__ = (UniqueConstraint("owner_id", "operation", "key"),)

    id: str = Field(default_factory=new_id, primary_key=True, max_length=32)
    owner_id: str = Field(foreign_key="user.id", max_length=32)
    # Method and path.
    operation: str = Field(max_length=200)
    key: str = Field(max_length=200)
    # Keyed digest of the whole request: its body may hold secrets that are short enough to be guessed.
    fingerprint: str = Field(max_length=64)
    status: int
    # As it was sent: it holds no secret in clear.
    answer: dict[str, Any] = Field(sa_type=Json)
    created_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)
    expires_at: datetime = Field(index=True, sa_type=UtcDateTime)

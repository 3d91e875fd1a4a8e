"""Sandboxes and the history of their states."""

from datetime import datetime
from typing import Any

from sqlalchemy import Index
from sqlmodel import Field, SQLModel

from shared.clock import now
from shared.ids import new_id
from shared.models.columns import Json, UtcDateTime, one_of
from shared.models.leases import Leased, leased_indexes
from shared.states import Desired, Status


class Sandbox(Leased, table=True):
    """A wish (`desired`, `generation`), written by the API, and a fact (`status`, …), written by workers."""

    __tablename__ = "sandbox"
    __table_args__ = (
        one_of("desired", Desired),
        one_of("status", Status),
        Index("ix_sandbox_owner_id_created_at_id", "owner_id", "created_at", "id"),
        Index("ix_sandbox_owner_id_desired", "owner_id", "desired"),
        *leased_indexes("sandbox"),
    )

    id: str = Field(default_factory=new_id, primary_key=True, max_length=32)
    # Empty: a member of the warm pool.
    owner_id: str | None = Field(default=None, foreign_key="user.id", max_length=32)
    spec_id: str = Field(foreign_key="sandbox_spec.id", max_length=256)
    # Empty: not placed yet.
    node_id: str | None = Field(default=None, foreign_key="node.id", index=True, max_length=64)

    desired: str = Field(max_length=16)
    generation: int = 1

    # Written by `shared.store.sandboxes.move` alone.
    status: str = Field(max_length=16)
    observed_generation: int = 0
    reason: str | None = Field(default=None, max_length=64)
    detail: str | None = None
    pause_kind: str | None = Field(default=None, max_length=16)
    exposed_urls: list[dict[str, Any]] | None = Field(default=None, sa_type=Json)
    # First time it was healthy; empty: its boot may still fail, and then nothing of it is worth keeping.
    ready_at: datetime | None = Field(default=None, sa_type=UtcDateTime)

    session_key: str  # ciphertext
    session_key_digest: str = Field(unique=True, max_length=64)
    created_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)
    updated_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)


class SandboxLeftover(SQLModel, table=True):
    """A lost node that a sandbox was moved away from: what its engine still has of the sandbox must go."""

    __tablename__ = "sandbox_leftover"

    sandbox_id: str = Field(foreign_key="sandbox.id", primary_key=True, max_length=32)
    node_id: str = Field(foreign_key="node.id", primary_key=True, index=True, max_length=64)


class SandboxTransition(SQLModel, table=True):
    """One move of one sandbox, with its time and reason."""

    __tablename__ = "sandbox_transition"

    id: int | None = Field(default=None, primary_key=True)
    sandbox_id: str = Field(foreign_key="sandbox.id", index=True, max_length=32)
    from_status: str | None = Field(default=None, max_length=16)
    to_status: str = Field(max_length=16)
    reason: str | None = Field(default=None, max_length=64)
    at: datetime = Field(default_factory=now, sa_type=UtcDateTime)

"""Sandboxes and the history of their states."""

from datetime import datetime
from typing import Any

from sqlalchemy import Index, UniqueConstraint
from sqlmodel import Field, SQLModel

from shared.clock import now
from shared.ids import new_id
from shared.models.columns import Json, UtcDateTime, one_of, partial_index
from shared.models.lease import Leased, leased_indexes
from shared.states import DeadlineAction, Desired, Status

# For counts. The second condition is always true: it keeps other queries, which have better indexes, from using this.
IS_COUNTED = "status != 'DELETED' AND coalesce(node_id, '') >= ''"
# Warm sandboxes that are not to be deleted.
IS_WARM = "owner_id IS NULL AND desired != 'DELETED'"
# Its desired state is not reached yet.
IS_UNRECONCILED = "generation != observed_generation AND status != 'DELETED'"
# Rows of deleted sandboxes. Queries repeat this text word for word: otherwise SQLite does not use the index. The second
# condition is always true: it keeps other queries, which have better indexes, from using this.
IS_TOMBSTONE = "status = 'DELETED' AND updated_at IS NOT NULL"
# Columns with another name in the database: the previous version, which runs beside this one during an update, reads
# and writes them by that name (decision 77).
DESIRED_REASON = {"key": "desired_reason", "name": "wish_reason"}
LOST_GENERATION = {"key": "lost_generation", "name": "told_generation"}
STATUS_CHANGED_AT = {"key": "status_changed_at", "name": "settled_at"}


class Sandbox(Leased, table=True):
    """Desired state (`desired`, `generation`), written by the API; observed state (`status`, …), written by workers."""

    __tablename__ = "sandbox"
    __table_args__ = (
        one_of("desired", Desired),
        one_of("status", Status),
        one_of("deadline_does", DeadlineAction),
        Index("ix_sandbox_owner_id_created_at_id", "owner_id", "created_at", "id"),
        Index("ix_sandbox_owner_id_desired", "owner_id", "desired"),
        # Lists contain no deleted sandboxes, which are kept for a month.
        partial_index("ix_sandbox_listed", "owner_id", "created_at", "id", where="desired != 'DELETED'"),
        partial_index("ix_sandbox_member", "spec_id", "status_changed_at", "id", where=IS_WARM),
        # For operators' lists: existing sandboxes by age, failed and deleted ones by the time of that change. The
        # condition on `settled_at` is always true: it keeps other queries, which have better indexes, from using these.
        partial_index("ix_sandbox_by_age", "created_at", "id", where="status != 'DELETED' AND settled_at IS NOT NULL"),
        *(
            partial_index(name, "status_changed_at", "id", where=f"status = '{status}' AND settled_at IS NOT NULL")
            for name, status in (("ix_sandbox_failed", Status.ERROR), ("ix_sandbox_gone", Status.DELETED))
        ),
        # Sandboxes that may still have a container, a volume or a network.
        partial_index("ix_sandbox_there", "node_id", "owner_id", where="status != 'DELETED'"),
        # For metrics: counts that read no rows.
        partial_index("ix_sandbox_counts", "node_id", "status", "reason", where=IS_COUNTED),
        partial_index("ix_sandbox_unreconciled", "updated_at", where=IS_UNRECONCILED),
        partial_index("ix_sandbox_tombstone", "updated_at", where=IS_TOMBSTONE),
        partial_index("ix_sandbox_deadline_at", "deadline_at", where="deadline_at IS NOT NULL"),
        *leased_indexes("sandbox"),
    )

    id: str = Field(default_factory=new_id, primary_key=True, max_length=32)
    # Empty: a warm sandbox.
    owner_id: str | None = Field(default=None, foreign_key="user.id", max_length=32)
    spec_id: str = Field(foreign_key="sandbox_spec.id", max_length=256)
    # Empty: not placed yet.
    node_id: str | None = Field(default=None, foreign_key="node.id", max_length=64)

    desired: str = Field(max_length=16)
    generation: int = 1
    # Why the desired state was set; empty: its owner requested it.
    desired_reason: str | None = Field(default=None, max_length=64, sa_column_kwargs=DESIRED_REASON)

    # Written by `shared.sandboxes.status` alone.
    status: str = Field(max_length=16)
    observed_generation: int = 0
    # The generation when the sandbox was last marked as lost with its node.
    lost_generation: int | None = Field(default=None, sa_column_kwargs=LOST_GENERATION)
    reason: str | None = Field(default=None, max_length=64)
    detail: str | None = None
    pause_kind: str | None = Field(default=None, max_length=16)
    exposed_urls: list[dict[str, Any]] | None = Field(default=None, sa_type=Json)
    # When its current status, or kind of pause, was written.
    status_changed_at: datetime = Field(default_factory=now, sa_type=UtcDateTime, sa_column_kwargs=STATUS_CHANGED_AT)
    # When it was first healthy; empty: its boot may still fail, and then nothing of it is kept.
    ready_at: datetime | None = Field(default=None, sa_type=UtcDateTime)

    # Its own deadlines; empty: its spec's; `shared.sandboxes.deadlines.NEVER`: none.
    freeze_after_seconds: int | None = None
    stop_after_seconds: int | None = None
    delete_after_seconds: int | None = None
    max_age_seconds: int | None = None
    last_active_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)
    # Derived from the others: only `shared.sandboxes.deadlines.refresh` writes these three.
    expires_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    deadline_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    deadline_does: str | None = Field(default=None, max_length=16)

    # True if created for a conversation: it is deleted with its last conversation. One that its owner created is not.
    goes_with_conversations: bool = False
    # The spec's revision at the creation of a warm sandbox.
    spec_revision: int = 1
    # Ciphertext: the init key of a warm sandbox's server. Empty: the sandbox booted for its owner.
    boot_key: str | None = None
    session_key: str  # ciphertext
    session_key_digest: str = Field(unique=True, max_length=64)
    created_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)
    updated_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)


class StaleContainer(SQLModel, table=True):
    """A node that a sandbox was moved away from. The sandbox's containers there must be removed, even late ones."""

    __tablename__ = "sandbox_leftover"

    sandbox_id: str = Field(foreign_key="sandbox.id", primary_key=True, max_length=32)
    node_id: str = Field(foreign_key="node.id", primary_key=True, index=True, max_length=64)
    # The generation for which the engine failed, and its error. Empty: the node was lost, or the failure is recorded.
    refused_generation: int | None = None
    refusal: str | None = None


class SandboxTransition(SQLModel, table=True):
    """One status change of one sandbox, with its time and reason."""

    __tablename__ = "sandbox_transition"

    id: int | None = Field(default=None, primary_key=True)
    sandbox_id: str = Field(foreign_key="sandbox.id", index=True, max_length=32)
    from_status: str | None = Field(default=None, max_length=16)
    to_status: str = Field(max_length=16)
    pause_kind: str | None = Field(default=None, max_length=16)
    reason: str | None = Field(default=None, max_length=64)
    # For a start or a resume: the seconds of each phase, in order, in the run that completed it.
    phases: dict[str, float] | None = Field(default=None, sa_type=Json)
    at: datetime = Field(default_factory=now, sa_type=UtcDateTime)


class SandboxLog(SQLModel, table=True):
    """The last lines that one container of a sandbox has printed, without secrets. It outlives the container."""

    __tablename__ = "sandbox_log"
    __table_args__ = (
        UniqueConstraint("sandbox_id", "container_id"),
        Index("ix_sandbox_log_owner_id_read_at", "owner_id", "read_at"),
    )

    id: str = Field(default_factory=new_id, primary_key=True, max_length=32)
    sandbox_id: str = Field(foreign_key="sandbox.id", max_length=32)
    # The sandbox's owner, for the limit of logs per owner.
    owner_id: str = Field(max_length=32)
    # The engine's id; empty: at that time there was no container to read.
    container_id: str = Field(max_length=64)
    # Why the log was kept (`LogCause`). Empty: the container ran.
    cause: str | None = Field(default=None, max_length=16)
    # Lines that begin with their time (`shared.container_logs.printed_text`).
    text: str = ""
    # Whether earlier lines are missing.
    is_cut: bool = False
    # When a worker began to read it: an older reading never replaces a newer one.
    read_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)
    expires_at: datetime = Field(index=True, sa_type=UtcDateTime)

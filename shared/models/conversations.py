"""Conversations, their start tasks, events and pending messages."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Index, Integer, UniqueConstraint, literal_column, text
from sqlmodel import Field, SQLModel, col

from shared.clock import now
from shared.ids import new_id
from shared.models.columns import Json, TextJson, UtcDateTime, one_of, partial_index
from shared.models.lease import Leased, leased_indexes
from shared.states import FINAL_STAGES, Stage

IS_UNFINISHED = " AND ".join(f"stage != '{stage}'" for stage in sorted(FINAL_STAGES))
IS_FAILED = f"stage = '{Stage.ERROR}'"
# Queries repeat this text word for word: otherwise SQLite does not use the index.
HAS_FAILED_AT = f"{IS_FAILED} AND updated_at IS NOT NULL"


class Conversation(Leased, table=True):
    """The record of a conversation. It outlives its sandbox.

    Webhooks write it. `due_at` schedules a worker for what no webhook carries: the title, a stop at the budget, and the
    state while a quota refuses events.
    """

    __tablename__ = "conversation"
    __table_args__ = (
        # The columns that lists filter by come last: rows are skipped, and counted, from the index alone.
        Index(
            "ix_conversation_by_created", "owner_id", "created_at", "id", "parent_id", "listed", "updated_at", "title"
        ),
        Index(
            "ix_conversation_by_updated", "owner_id", "updated_at", "id", "parent_id", "listed", "created_at", "title"
        ),
        Index("ix_conversation_by_title", "owner_id", "title", "id", "parent_id", "listed"),
        Index("ix_conversation_of_sandbox", "sandbox_id", "created_at", "id", "parent_id", "listed"),
        # Finds any substring of a title with three characters or more.
        Index(
            "ix_conversation_title_search",
            "owner_id",
            literal_column("lower(title)").label("lowered"),
            postgresql_using="gin",
            postgresql_ops={"lowered": "gin_trgm_ops"},
        ).ddl_if(dialect="postgresql"),
        Index("ix_conversation_children", "parent_id", "owner_id", "created_at", "id", "listed"),
        # The few conversations with work to do as soon as their sandbox runs.
        Index(
            "ix_conversation_awaits_sandbox",
            "sandbox_id",
            sqlite_where=text("awaits_sandbox = 1"),
            postgresql_where=text("awaits_sandbox"),
        ),
        *leased_indexes("conversation"),
    )

    id: str = Field(default_factory=new_id, primary_key=True, max_length=32)
    owner_id: str = Field(foreign_key="user.id", max_length=32)
    sandbox_id: str = Field(foreign_key="sandbox.id", max_length=32)
    parent_id: str | None = Field(default=None, max_length=32)
    # False while its start may still fail: not shown, but its webhooks are already accepted.
    listed: bool = True
    # A tombstone since then: no list shows it, and no webhook restores it.
    deleted_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    # There is work to do as soon as its sandbox runs: deliver messages, resume an agent that a pause has interrupted,
    # or delete the conversation at the agent server.
    awaits_sandbox: bool = False
    title: str = Field(max_length=500)
    # True if it has its final title: a person's, or the agent server's own.
    title_settled: bool = False
    public: bool | None = None
    selected_repository: str | None = Field(default=None, max_length=500)
    selected_branch: str | None = Field(default=None, max_length=500)
    git_provider: str | None = Field(default=None, max_length=32)
    trigger: str | None = Field(default=None, max_length=32)
    pr_number: list[int] = Field(default_factory=list, sa_type=Json)
    llm_model: str | None = Field(default=None, max_length=500)
    agent_kind: str = Field(default="openhands", max_length=32)
    execution_status: str | None = Field(default=None, max_length=32)
    # When the agent server wrote that status, by its own clock: a late webhook must not overwrite a newer status.
    execution_status_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    # Why it is in error, or what it waits for while it runs: a code, and a text for people.
    execution_reason: str | None = Field(default=None, max_length=64)
    execution_detail: str | None = None
    metrics: dict[str, Any] | None = Field(default=None, sa_type=Json)
    # In the metrics' currency. A worker interrupts the agent when the budget is used up.
    max_budget: float | None = None
    tags: dict[str, str] = Field(default_factory=dict, sa_type=Json)
    working_dir: str | None = Field(default=None, max_length=1024)
    created_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)
    updated_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)


class StartTask(Leased, table=True):
    """One request to start a conversation. `worker.conversations.start` takes it through its stages."""

    __tablename__ = "start_task"
    __table_args__ = (
        one_of("stage", Stage),
        Index("ix_start_task_owner_id_created_at_id", "owner_id", "created_at", "id"),
        Index("ix_start_task_owner_id_updated_at_id", "owner_id", "updated_at", "id"),
        partial_index("ix_start_task_unfinished", "owner_id", "conversation_id", where=IS_UNFINISHED),
        # Failed start tasks: the first index is for their retention, the second for the number of each owner's. The
        # second condition of the first is always true: it keeps other queries, with better indexes, from using it.
        partial_index("ix_start_task_failed_at", "updated_at", where=HAS_FAILED_AT),
        partial_index("ix_start_task_owner_id_failed_at", "owner_id", "updated_at", "id", where=IS_FAILED),
        *leased_indexes("start_task"),
    )

    id: str = Field(default_factory=new_id, primary_key=True, max_length=32)
    owner_id: str = Field(foreign_key="user.id", max_length=32)
    conversation_id: str = Field(unique=True, max_length=32)
    sandbox_id: str | None = Field(default=None, foreign_key="sandbox.id", index=True, max_length=32)
    # True if the sandbox was created for this task.
    made_sandbox: bool = False
    stage: str = Field(max_length=32)
    # When its owner cancelled it. A worker then writes stage ERROR.
    cancelled_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    reason: str | None = Field(default=None, max_length=64)
    detail: str | None = None
    # The request as shown, without secrets, with markers such as `start.OWN_FOLDER`; and its secrets, encrypted.
    request: dict[str, Any] = Field(sa_type=TextJson)
    secrets: str | None = None
    created_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)
    updated_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)


# The conditions of a start task that has not ended.
UNFINISHED = tuple(col(StartTask.stage) != stage for stage in FINAL_STAGES)


class Event(SQLModel, table=True):
    """One event as its agent server sent it. A repeated event is not stored twice."""

    __tablename__ = "event"
    __table_args__ = (
        UniqueConstraint("conversation_id", "id"),
        Index("ix_event_conversation_id_timestamp_seq", "conversation_id", "timestamp", "seq"),
    )

    # Order of arrival: breaks ties between equal timestamps.
    seq: int | None = Field(default=None, primary_key=True, sa_type=BigInteger().with_variant(Integer, "sqlite"))
    conversation_id: str = Field(foreign_key="conversation.id", max_length=32)
    id: str = Field(max_length=64)
    kind: str = Field(max_length=64)
    # The agent server's clock, read as UTC.
    timestamp: datetime = Field(sa_type=UtcDateTime)
    body: dict[str, Any] = Field(sa_type=Json)


class PendingMessage(SQLModel, table=True):
    """A user's message that the agent server is not known to have received. It is removed on delivery."""

    __tablename__ = "pending_message"
    __table_args__ = (
        UniqueConstraint("id"),
        Index("ix_pending_message_conversation_id_seq", "conversation_id", "seq"),
    )

    # The order of delivery.
    seq: int | None = Field(default=None, primary_key=True, sa_type=BigInteger().with_variant(Integer, "sqlite"))
    id: str = Field(default_factory=new_id, max_length=32)
    # No foreign key: during its start, the conversation has no row.
    conversation_id: str = Field(max_length=32)
    content: list[dict[str, Any]] = Field(sa_type=TextJson)
    created_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)
    # The time of the first attempt to deliver the message, and the id of the user's newest message before that attempt.
    attempted_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    newest_before: str | None = Field(default=None, max_length=64)
    # Why the agent server rejected it.
    refusal: str | None = None

"""Where sandboxes run, and what they are made from."""

from datetime import datetime

from sqlalchemy import BigInteger
from sqlmodel import Field, SQLModel

from shared.clock import now
from shared.ids import new_id
from shared.models.columns import Json, UtcDateTime, one_of
from shared.states import NodeStatus


class Installation(SQLModel, table=True):
    """One row: this installation's id, so that two of them on one engine leave each other's containers alone."""

    __tablename__ = "installation"

    id: str = Field(default_factory=new_id, primary_key=True, max_length=32)


class Node(SQLModel, table=True):
    """One Docker Engine and the worker beside it."""

    __tablename__ = "node"
    __table_args__ = (one_of("status", NodeStatus),)

    id: str = Field(primary_key=True, max_length=64)
    status: str = Field(max_length=16)
    # Sandboxes it takes, whatever their state.
    capacity: int
    # What tells its engine from all others; empty: never heard from it.
    engine_id: str | None = Field(default=None, index=True, unique=True, max_length=512)
    # Why it is LOST.
    detail: str | None = None
    heartbeat_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)
    # An operator says that it never comes back; its next heartbeat says otherwise.
    forgotten_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class UnknownContainer(SQLModel, table=True):
    """What an engine has under a name of ours, a container, a volume or both, and no row has ever explained."""

    __tablename__ = "unknown_container"

    # Refers to nothing: a store that has forgotten sandboxes may have forgotten nodes, too.
    node_id: str = Field(primary_key=True, max_length=64)
    name: str = Field(primary_key=True, max_length=255)
    first_seen_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)
    # It was there with so many others that an operator must say what becomes of it.
    one_of_many: bool = False
    # Since then an operator lets it be removed.
    approved_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class NodeSpecBackoff(SQLModel, table=True):
    """How often in a row a node's engine has refused a spec that other engines run."""

    __tablename__ = "node_refusal"

    node_id: str = Field(foreign_key="node.id", primary_key=True, max_length=64)
    spec_id: str = Field(foreign_key="sandbox_spec.id", primary_key=True, max_length=256)
    failures: int = 0
    # What the engine said last.
    detail: str | None = None
    # Too often: no more sandboxes of the spec until then.
    rests_until: datetime | None = Field(default=None, sa_type=UtcDateTime)
    # One more has been placed since, to see.
    on_trial: bool = False


class SandboxSpec(SQLModel, table=True):
    """A template for sandboxes. Its id is its image's reference, as in V1 (wire contract 1.6)."""

    __tablename__ = "sandbox_spec"

    id: str = Field(primary_key=True, max_length=256)
    # The lowest position is the default.
    position: int = Field(index=True)
    command: list[str] | None = Field(default=None, sa_type=Json)
    env: dict[str, str] = Field(default_factory=dict, sa_type=Json)
    working_dir: str = Field(default="/workspace/project", max_length=1024)
    # Ports inside the container, by the name under which their URL is exposed.
    ports: dict[str, int] = Field(default_factory=lambda: {"AGENT_SERVER": 8000}, sa_type=Json)
    memory_bytes: int = Field(default=4 * 1024**3, sa_type=BigInteger)
    cpus: float = Field(default=2.0)
    pids: int = Field(default=2048)
    # Capabilities added back after all were dropped.
    capabilities: list[str] = Field(default_factory=list, sa_type=Json)
    runtime: str | None = Field(default=None, max_length=64)
    # Deadlines of its sandboxes (decision 17); empty: never.
    freeze_after_seconds: int | None = None
    stop_after_seconds: int | None = None
    delete_after_seconds: int | None = None
    max_age_seconds: int | None = None
    # Whether traffic to one that is paused resumes it (decision 26).
    wake_on_traffic: bool = True
    # The warm pool (decision 21): members that wait, ready; and the most there are at a time, booting ones too.
    warm_target: int = 0
    warm_most: int = 0
    # Grows when what its sandboxes are made from changes: older members of the pool are of no use then.
    revision: int = 1
    # How often in a row a member could not be made, when last, and why.
    warm_failures: int = 0
    warm_failed_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    warm_detail: str | None = None
    created_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)

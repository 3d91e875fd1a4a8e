"""Nodes, and the specs of sandboxes."""

from datetime import datetime

from sqlalchemy import BigInteger
from sqlmodel import Field, SQLModel

from shared.clock import now
from shared.ids import new_id
from shared.models.columns import Json, TextJson, UtcDateTime, one_of
from shared.states import NodeStatus

# Columns with another name in the database (decision 77).
BACKOFF_UNTIL = {"key": "backoff_until", "name": "rests_until"}
IS_HALF_OPEN = {"key": "is_half_open", "name": "on_trial"}


class Installation(SQLModel, table=True):
    """One row with this installation's id: two installations on one engine ignore each other's containers."""

    __tablename__ = "installation"

    id: str = Field(default_factory=new_id, primary_key=True, max_length=32)


class Node(SQLModel, table=True):
    """One Docker Engine and its worker."""

    __tablename__ = "node"
    __table_args__ = (one_of("status", NodeStatus),)

    id: str = Field(primary_key=True, max_length=64)
    status: str = Field(max_length=16)
    # Max sandboxes, in any state.
    capacity: int
    # The unique id of its engine; empty before the first heartbeat.
    engine_id: str | None = Field(default=None, index=True, unique=True, max_length=512)
    # Why it is LOST.
    detail: str | None = None
    # Why the node takes no new sandboxes, although its worker and its engine respond.
    closed_reason: str | None = None
    # What does not work on the node, although it takes new sandboxes.
    impaired_reason: str | None = None
    # The kind of disk that holds the files of its new sandboxes; empty before the first heartbeat.
    disk_kind: str | None = Field(default=None, max_length=16)
    # The runtimes of its engine that specs may use; empty before the first heartbeat.
    runtimes: list[str] | None = Field(default=None, sa_type=Json)
    heartbeat_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)
    # When an operator gave it up. Its next heartbeat clears this.
    forgotten_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class UnknownContainer(SQLModel, table=True):
    """A container, a volume or both, with a name of this service, for which the database has no row."""

    __tablename__ = "unknown_container"

    # No foreign key: a database that misses sandboxes may miss nodes, too.
    node_id: str = Field(primary_key=True, max_length=64)
    name: str = Field(primary_key=True, max_length=255)
    first_seen_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)
    # It appeared with too many others: only an operator may approve its removal.
    one_of_many: bool = False
    # When an operator approved its removal.
    approved_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class ModelServer(SQLModel, table=True):
    """A model server on a private address that sandboxes may reach if their owners' settings name it."""

    __tablename__ = "model_server"

    # An IPv4 address and a port, as `192.168.1.20:8000`.
    address: str = Field(primary_key=True, max_length=32)
    created_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)


class NodeSpecBackoff(SQLModel, table=True):
    """The circuit breaker of a spec on a node: consecutive failures of the node's engine while other engines run it."""

    __tablename__ = "node_refusal"

    node_id: str = Field(foreign_key="node.id", primary_key=True, max_length=64)
    spec_id: str = Field(foreign_key="sandbox_spec.id", primary_key=True, max_length=256)
    failures: int = 0
    # The engine's last error.
    detail: str | None = None
    # Backoff: no new sandboxes of the spec until then.
    backoff_until: datetime | None = Field(default=None, sa_type=UtcDateTime, sa_column_kwargs=BACKOFF_UNTIL)
    # One more sandbox was placed to test the engine.
    is_half_open: bool = Field(default=False, sa_column_kwargs=IS_HALF_OPEN)


class SandboxSpec(SQLModel, table=True):
    """A template for sandboxes. Its id is its image's reference, as in V1 (wire contract 1.6)."""

    __tablename__ = "sandbox_spec"

    id: str = Field(primary_key=True, max_length=256)
    # The lowest position is the default.
    position: int = Field(index=True)
    command: list[str] | None = Field(default=None, sa_type=TextJson)
    env: dict[str, str] = Field(default_factory=dict, sa_type=TextJson)
    working_dir: str = Field(default="/workspace/project", max_length=1024)
    # Ports inside the container, by the name under which their URL is exposed.
    ports: dict[str, int] = Field(default_factory=lambda: {"AGENT_SERVER": 8000}, sa_type=Json)
    memory_bytes: int = Field(default=4 * 1024**3, sa_type=BigInteger)
    cpus: float = Field(default=2.0)
    pids: int = Field(default=2048)
    # Capabilities added back after all were dropped.
    capabilities: list[str] = Field(default_factory=list, sa_type=Json)
    runtime: str | None = Field(default=None, max_length=64)
    # What its sandboxes reach outside their node (`shared.sandboxes.egress`): open, none, networks, names.
    egress: str = "open"
    # Size of a sandbox's disk; 0: no limit; empty: the worker's setting.
    disk_bytes: int | None = Field(default=None, sa_type=BigInteger)
    # Deadlines of its sandboxes (decision 17); empty: never.
    freeze_after_seconds: int | None = None
    stop_after_seconds: int | None = None
    delete_after_seconds: int | None = None
    max_age_seconds: int | None = None
    # Whether a proxied request to a paused sandbox resumes it (decision 26).
    wake_on_traffic: bool = True
    # The warm pool (decision 21): the number of ready sandboxes, and the max number including booting ones.
    warm_target: int = 0
    warm_most: int = 0
    # Increases with each change that affects containers: warm sandboxes of an older revision are not used.
    revision: int = 1
    # Consecutive failures to create a warm sandbox, with the time and the error of the last one.
    warm_failures: int = 0
    warm_failed_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    warm_detail: str | None = None
    created_at: datetime = Field(default_factory=now, sa_type=UtcDateTime)

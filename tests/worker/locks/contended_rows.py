"""Rows that operations contend for: one user's sandboxes, conversations and starts on few nodes."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import insert
from sqlmodel import SQLModel, select

from shared.clock import after, now
from shared.db.database import Database
from shared.models import (
    ApiKey,
    Conversation,
    DeviceAuthorization,
    Event,
    Node,
    NodeSpecBackoff,
    PendingMessage,
    Sandbox,
    SandboxLog,
    SandboxSpec,
    SandboxTransition,
    StaleContainer,
    StartTask,
    UnknownContainer,
)
from shared.retention import tombstones
from shared.sandboxes import quarantine
from shared.states import DeadlineAction, Desired, NodeStatus, Reason, Stage, Status
from shared.users import device_authorizations, settings_store
from shared.users.device_authorizations import Requester
from tests.factories import VAULT, ApiUser, make_conversation, make_node, make_sandbox, make_start_task, make_user
from tests.fakes.engine import IMAGE
from worker.context import WorkerContext

Row = TypeVar("Row", bound=SQLModel)

# In the order of their foreign keys.
TABLES: tuple[Any, ...] = (
    SandboxSpec,
    Node,
    NodeSpecBackoff,
    Sandbox,
    StaleContainer,
    SandboxTransition,
    SandboxLog,
    StartTask,
    Conversation,
    Event,
    PendingMessage,
    UnknownContainer,
    ApiKey,
    DeviceAuthorization,
)
SECOND, LOST = "node-b", "node-lost"
DEAD = "a worker that died"
CLONE = "/workspace/app"
UNKNOWN = [f"aw-unknown-{number}" for number in range(4)]
A_WHILE = timedelta(minutes=1)


@dataclass
class ContendedRows:
    """The rows' ids by name, and a backup of all rows."""

    context: WorkerContext
    alice: ApiUser
    # Owner with the max number of running sandboxes.
    bob: ApiUser
    ids: dict[str, str]
    _before: dict[Any, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def database(self) -> Database:
        return self.context.database

    def save(self) -> None:
        """Back up all rows."""
        with self.database.reading() as session:
            for table in TABLES:
                self._before[table] = [row.model_dump() for row in session.exec(select(table)).all()]

    def restore(self) -> None:
        """Restore all rows from the backup."""
        with self.database.transaction() as session:
            for table in (*reversed(TABLES[3:]), NodeSpecBackoff):
                session.connection().execute(table.__table__.delete())
            for table in TABLES:
                if table in (SandboxSpec, Node):
                    self._update(session, table)
                elif saved := self._before[table]:
                    session.connection().execute(insert(table.__table__), saved)

    def read(self, table: type[Row], name: str) -> Row:
        """Read a row, detached from its session."""
        with self.database.reading() as session:
            return session.get_one(table, self.ids[name])

    def _update(self, session: Any, table: Any) -> None:
        for row in self._before[table]:
            fresh = {"heartbeat_at": now()} if table is Node and row["id"] != LOST else {}
            found = session.get_one(table, row["id"])
            for name, value in (row | fresh).items():
                setattr(found, name, value)


def make_contended_rows(context: WorkerContext) -> ContendedRows:
    """Create the rows that operations contend for."""
    database = context.database
    alice, bob = make_user(database, "alice"), make_user(database, "bob")
    for user, strategy in ((alice, "ADD_TO_ANY"), (bob, "NO_GROUPING")):
        with database.transaction() as session:
            settings = {"llm_api_key": "sk-test", "llm_model": "m", "sandbox_grouping_strategy": strategy}
            settings_store.change(session, VAULT, user.id, settings)
    with database.transaction() as session:
        spec = session.get_one(SandboxSpec, IMAGE)
        spec.warm_target, spec.warm_most = 5, 6
    make_node(database, SECOND)
    make_node(database, LOST, status=NodeStatus.LOST, detail="silent", heartbeat_at=now() - A_WHILE)
    rows = ContendedRows(context, alice, bob, {})
    _add_sandboxes(rows)
    _add_conversations(rows)
    _add_devices(rows)
    with database.transaction() as session:
        quarantine.keep(session, context.settings.node, UNKNOWN)
    rows.save()
    return rows


def _add_sandboxes(rows: ContendedRows) -> None:
    old, lost = {"last_active_at": now() - A_WHILE}, {"node_id": LOST}
    overdue = {"deadline_at": now() - A_WHILE, "deadline_does": DeadlineAction.FREEZE}
    warm = {"owner_id": None, "boot_key": VAULT.encrypt("boot")}
    held = {"lease_owner": DEAD, "lease_until": after(10), "desired": Desired.PAUSED}
    marked = {"status": Status.ERROR, "reason": Reason.NODE_LOST, "generation": 3, "lost_generation": 2}
    new = {"status": Status.STARTING, "generation": 2}
    wanted: dict[str, dict[str, Any]] = {
        **{name: {**old} for name in ("one", "two", "three")},
        "paused": {"status": Status.PAUSED},
        "stale": {**overdue},
        "waiting": {**new, "node_id": None},
        "refused": {**new},
        "proven": {**new, "node_id": SECOND},
        "held": {**held},
        "going": {"status": Status.DELETING, "desired": Desired.DELETED},
        "lost": {**lost},
        "resumed": {**lost, **marked},
        **{f"warm {number}": {**warm} for number in range(3)},
    }
    for name, columns in wanted.items():
        rows.ids[name] = make_sandbox(rows.database, rows.alice, spec_id=IMAGE, **columns).id
    for number in range(3):
        rows.ids[f"bob's {number}"] = make_sandbox(rows.database, rows.bob, spec_id=IMAGE).id
    for number in range(2):
        gone: dict[str, Any] = {"status": Status.DELETED, "updated_at": now() - tombstones.RETENTION}
        rows.ids[f"gone {number}"] = make_sandbox(rows.database, rows.alice, spec_id=IMAGE, **gone).id
    with rows.database.transaction() as session:
        proof = {"sandbox_id": rows.ids["proven"], "node_id": rows.context.settings.node}
        session.add(StaleContainer(**proof, refused_generation=2, refusal="no"))


def _add_conversations(rows: ContendedRows) -> None:
    one, two = (rows.read(Sandbox, name) for name in ("one", "two"))
    parent = make_conversation(rows.database, rows.alice, one, due_at=now(), working_dir=CLONE)
    child = make_conversation(rows.database, rows.alice, two, parent_id=parent.id, due_at=now())
    request = {"parent_conversation_id": parent.id}
    begun = Stage.STARTING_CONVERSATION
    failing = make_start_task(rows.database, rows.alice, two, made_sandbox=True, request=request)
    beginning = make_start_task(rows.database, rows.alice, one, stage=Stage.PREPARING_REPOSITORY, request=request)
    ending = make_start_task(rows.database, rows.alice, one, stage=begun, request=request)
    unlisted = make_conversation(rows.database, rows.alice, one, id=ending.conversation_id, listed=False)
    ended = {"listed": False, "deleted_at": now(), "awaits_sandbox": True}
    deleted = make_conversation(rows.database, rows.alice, rows.read(Sandbox, "going"), **ended)
    long_ago = ended | {"deleted_at": now() - tombstones.RETENTION, "awaits_sandbox": False}
    make_conversation(rows.database, rows.alice, rows.read(Sandbox, "gone 0"), **long_ago)
    orphan = make_conversation(rows.database, rows.alice, one, parent_id=deleted.id, working_dir=CLONE)
    for _ in range(2):
        make_conversation(rows.database, rows.alice, rows.read(Sandbox, "resumed"), execution_status="running")
    named: dict[str, Any] = {
        "deleted": deleted,
        "orphan": orphan,
        "parent": parent,
        "child": child,
        "failing": failing,
        "beginning": beginning,
        "ending": ending,
        "unlisted": unlisted,
    }
    rows.ids |= {name: row.id for name, row in named.items()}


def _add_devices(rows: ContendedRows) -> None:
    """Add a device authorization that waits for approval, and an approved one."""
    with rows.database.transaction() as session:
        rows.ids["key"] = session.exec(select(ApiKey.id).where(ApiKey.user_id == rows.alice.id)).one()
        waiting, approved = (device_authorizations.begin(session, VAULT, Requester("a device")) for _ in range(2))
        device_authorizations.decide(session, VAULT, approved.user_code, rows.ids["key"], approve=True)
    rows.ids |= {"code of a device": waiting.user_code, "approved device": approved.device_code}

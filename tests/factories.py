"""Rows for tests, inserted directly into the database, with defaults that tests can override."""

from dataclasses import dataclass
from datetime import UTC, datetime
from types import NoneType
from typing import Any, TypeVar, get_args

from sqlalchemy import Connection, Table, bindparam, insert, select
from sqlalchemy.orm import make_transient_to_detached
from sqlmodel import SQLModel, col

from shared.agent_server.door import open_access
from shared.clock import now
from shared.crypto import Vault, new_api_key, new_secret_key
from shared.db.database import Database
from shared.ids import new_id
from shared.models import ApiKey, Conversation, Event, Node, Sandbox, SandboxSpec, StartTask, User
from shared.states import FINAL_STAGES, Desired, NodeStatus, PauseKind, Reason, Stage, Status
from shared.users.api_keys import PREFIX_LENGTH

SECRET_KEY = new_secret_key()
VAULT = Vault([SECRET_KEY])
DOOR = open_access(VAULT)
SPEC_ID = "agent-workspace/sandbox:test"
NODE_ID = "node-a"

Columns = dict[str, Any]
VALUES: dict[type, Any] = {str: "text", int: 60, float: 0.5, bool: True, datetime: datetime(2026, 2, 2, tzinfo=UTC)}
Row = TypeVar("Row", bound=SQLModel)
Named = TypeVar("Named", SandboxSpec, Node)


@dataclass(frozen=True)
class ApiUser:
    """A user with a key."""

    id: str
    name: str
    key: str

    @property
    def headers(self) -> dict[str, str]:
        """The headers of this user's requests."""
        return {"Authorization": f"Bearer {self.key}"}


# Queries for a row with a given id.
_ID_OF = {table: select(col(table.id)).where(col(table.id) == bindparam("id")) for table in (SandboxSpec, Node)}


def make_user(database: Database, name: str) -> ApiUser:
    """A new user with a key."""
    user, key = User(name=name), new_api_key()
    with database._writing.begin() as connection:
        _insert(connection, user)
        _insert(connection, ApiKey(user_id=user.id, name="tests", prefix=key[:PREFIX_LENGTH], digest=VAULT.digest(key)))
    return ApiUser(user.id, name, key)


def make_spec(database: Database, spec_id: str = SPEC_ID, **columns: Any) -> SandboxSpec:
    """The spec of that id, created if missing."""
    return _get_or_add(database, _spec(spec_id, **columns))


def make_node(database: Database, node_id: str = NODE_ID, **columns: Any) -> Node:
    """The node of that id, created as READY with a large capacity if missing."""
    return _get_or_add(database, _node(node_id, **columns))


def make_sandbox(
    database: Database,
    owner: ApiUser,
    *,
    status: Status = Status.RUNNING,
    spec_id: str = SPEC_ID,
    node_id: str | None = NODE_ID,
    **columns: Any,
) -> Sandbox:
    """A sandbox that has reached its desired state, with its spec and node."""
    key = new_api_key()
    settled: Columns = {
        "owner_id": owner.id,
        "spec_id": spec_id,
        "node_id": node_id,
        "session_key": VAULT.encrypt(key),
        "session_key_digest": VAULT.digest(key),
        # As created by the start of a conversation.
        "goes_with_conversations": True,
    }
    sandbox = Sandbox(**(settled | _settled(status) | columns))
    with database._writing.begin() as connection:
        _insert_missing(connection, _spec(spec_id), *([] if node_id is None else [_node(node_id)]))
        _insert(connection, sandbox)
    return sandbox


def session_key_of(sandbox: Sandbox) -> str:
    """The session key of the sandbox's agent server."""
    return VAULT.decrypt(sandbox.session_key)


def fill_columns(table: type[SQLModel], **columns: Any) -> Columns:
    """A value for each nullable column; columns that are not of a plain type stay null."""
    kinds = {name: set(get_args(field.annotation)) for name, field in table.model_fields.items()}
    found = {name: next(iter(kind - {NoneType})) for name, kind in kinds.items() if NoneType in kind}
    return {name: VALUES.get(kind) for name, kind in found.items()} | columns


def make_conversation(database: Database, owner: ApiUser, sandbox: Sandbox, **columns: Any) -> Conversation:
    """A conversation in that sandbox."""
    row_id = columns.pop("id", None) or new_id()
    defaults: Columns = {"owner_id": owner.id, "sandbox_id": sandbox.id, "title": f"Conversation {row_id[:5]}"}
    return _add(database, Conversation(id=row_id, **(defaults | columns)))


def make_start_task(
    database: Database,
    owner: ApiUser,
    sandbox: Sandbox | None = None,
    *,
    stage: Stage = Stage.WORKING,
    **columns: Any,
) -> StartTask:
    """A start task at that stage, its request empty."""
    defaults: Columns = {
        "owner_id": owner.id,
        "conversation_id": new_id(),
        "sandbox_id": sandbox.id if sandbox else None,
        "stage": stage,
        "request": {},
        "due_at": None if stage in FINAL_STAGES else now(),
    }
    return _add(database, StartTask(**(defaults | columns)))


def make_event(
    database: Database, conversation: Conversation, *, timestamp: datetime | None = None, **columns: Any
) -> Event:
    """An event of that conversation, by default one that happened now."""
    row_id, at = columns.pop("id", None) or new_id(), timestamp or now()
    kind = columns.pop("kind", "MessageEvent")
    body = {"id": row_id, "kind": kind, "timestamp": at.replace(tzinfo=None).isoformat(), "source": "agent"}
    defaults: Columns = {"conversation_id": conversation.id, "id": row_id, "kind": kind, "timestamp": at, "body": body}
    event = Event(**(defaults | columns))
    with database.transaction() as session:
        session.add(event)  # the database gives it a number
    return event


def _spec(spec_id: str, **columns: Any) -> SandboxSpec:
    defaults: Columns = {"id": spec_id, "position": 0}
    return SandboxSpec(**(defaults | columns))


def _node(node_id: str, **columns: Any) -> Node:
    defaults: Columns = {"id": node_id, "status": NodeStatus.READY, "capacity": 100}
    return Node(**(defaults | columns))


def _settled(status: Status) -> Columns:
    columns: Columns = {"status": status, "desired": Desired.RUNNING, "observed_generation": 1}
    match status:
        case Status.STARTING:
            columns |= {"observed_generation": 0, "due_at": now()}
        case Status.RUNNING:
            urls = [{"name": "AGENT_SERVER", "url": "http://127.0.0.1:18000", "port": 8000}]
            columns |= {"ready_at": now(), "exposed_urls": urls}
        case Status.PAUSED:
            columns |= {"desired": Desired.PAUSED, "ready_at": now(), "pause_kind": PauseKind.FROZEN}
        case Status.ERROR:
            columns |= {"reason": Reason.EXIT_CODE, "detail": "exit code 1"}
        case Status.DELETING | Status.DELETED:
            columns |= {"desired": Desired.DELETED}
    return columns


def _add(database: Database, row: Row) -> Row:
    """Insert the row, and leave it as after a commit. A session would take three times as long."""
    with database._writing.begin() as connection:
        _insert(connection, row)
    return row


def _get_or_add(database: Database, row: Named) -> Named:
    with database._writing.begin() as connection:
        is_new = _insert_missing(connection, row)
    if is_new:
        return row
    with database.reading() as session:
        return session.get_one(type(row), row.id)


def _insert_missing(connection: Connection, *rows: SandboxSpec | Node) -> bool:
    """Insert the rows whose ids do not exist; return whether none existed."""
    missing = [row for row in rows if not connection.execute(_ID_OF[type(row)], {"id": row.id}).all()]
    for row in missing:
        _insert(connection, row)
    return len(missing) == len(rows)


def _insert(connection: Connection, row: SQLModel) -> None:
    table = _table(row)
    connection.execute(insert(table), {name: getattr(row, name) for name in table.columns.keys()})  # noqa: SIM118
    make_transient_to_detached(row)


def _table(row: SQLModel) -> Table:
    table: Table = row.__table__  # type: ignore[attr-defined]
    return table

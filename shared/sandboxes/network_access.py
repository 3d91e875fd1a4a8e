"""Queries for the network rules of a node."""

from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import and_, or_, true
from sqlalchemy import select as sql_select
from sqlmodel import Session, col, select

from shared.crypto import Vault
from shared.db.database import Database
from shared.models import ModelServer, Sandbox, SandboxSpec, UserSettings
from shared.nodes.placement import may_have_container
from shared.sql.statements import bind, bind_values
from shared.states import PauseKind, Status
from shared.users import settings_store
from shared.users.settings_v1 import current_llm

OF_SPEC = col(SandboxSpec.id) == col(Sandbox.spec_id)
RUNS = or_(
    col(Sandbox.status).in_((Status.STARTING, Status.RUNNING)),
    and_(col(Sandbox.status) == Status.PAUSED, col(Sandbox.pause_kind) == PauseKind.FROZEN),
)


class NetworkRow(NamedTuple):
    """A sandbox, its owner, and its spec's egress."""

    id: str
    owner_id: str | None
    egress: str


class NodeRow(NamedTuple):
    """A sandbox of a node."""

    row: NetworkRow
    # Whether its container runs or is paused, as a worker last recorded it.
    runs: bool


class SandboxNetwork(NamedTuple):
    """What the rules of one sandbox depend on."""

    row: NetworkRow
    # The version of its owner's settings, by owner; empty: the owner has none, or the sandbox has no owner.
    settings_versions: dict[str, str]
    # The model servers that operators have allowed by a command.
    model_servers: frozenset[str]


def on_node(session: Session, node_id: str) -> list[NodeRow]:
    """Return the sandboxes that may have a container on that node's engine."""
    rows = select(Sandbox.id, Sandbox.owner_id, SandboxSpec.egress, RUNS).join(SandboxSpec, OF_SPEC)
    found = session.exec(rows.where(Sandbox.node_id == node_id, may_have_container())).all()
    return [NodeRow(NetworkRow(*row), bool(runs)) for *row, runs in found]


def read_one(database: Database, sandbox_id: str) -> SandboxNetwork | None:
    """Return what the rules of that sandbox depend on, by one prepared statement: each start and resume reads it."""
    rows = database.fetch(READ, bind_values(sandbox_id=sandbox_id))
    if not rows:
        return None
    sandbox_id, owner_id, stated, changed_at, _ = rows[0]
    versions = {owner_id: _version(changed_at)} if changed_at else {}
    servers = frozenset(row[-1] for row in rows if row[-1] is not None)
    return SandboxNetwork(NetworkRow(sandbox_id, owner_id, stated), versions, servers)


def settings_versions(session: Session, owner_ids: Collection[str]) -> dict[str, str]:
    """Return the versions of users' settings. A user without settings is left out."""
    columns = select(UserSettings.user_id, UserSettings.updated_at).where(col(UserSettings.user_id).in_(owner_ids))
    return {user_id: _version(at) for user_id, at in session.exec(columns).all()}


def model_urls(session: Session, vault: Vault, owner_id: str) -> tuple[str, ...]:
    """Return the base URLs that a user's LLM settings name, current or saved."""
    stored = settings_store.load(session, vault, owner_id)
    if stored is None:
        return ()
    llms = [current_llm(stored), *stored.llm_profiles.profiles.values()]
    return tuple({str(llm["base_url"]) for llm in llms if llm.get("base_url")})


def _version(changed_at: datetime) -> str:
    return changed_at.isoformat()


# --- prepared statement -----------------------------------------------------------------------------------------------

# It returns a row for each model server, or a single row if there is no model server.
READ = (
    sql_select(
        col(Sandbox.id),
        col(Sandbox.owner_id),
        col(SandboxSpec.egress),
        col(UserSettings.updated_at),
        col(ModelServer.address),
    )
    .join(SandboxSpec, OF_SPEC)
    .join(UserSettings, col(UserSettings.user_id) == col(Sandbox.owner_id), isouter=True)
    .join(ModelServer, true(), isouter=True)
    .where(col(Sandbox.id) == bind("sandbox_id"))
)

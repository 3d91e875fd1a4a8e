"""Reads of what the network rules of a node depend on."""

from collections.abc import Collection
from typing import Any, NamedTuple

from sqlmodel import Session, col, select

from shared.crypto import Vault
from shared.models import Sandbox, SandboxSpec, UserSettings
from shared.nodes.placement import is_there
from shared.users import settings_store
from shared.users.settings_v1 import current_llm


class NetworkRow(NamedTuple):
    """A sandbox, its owner, and its spec's egress."""

    id: str
    owner_id: str | None
    egress: str


def on_node(session: Session, node_id: str) -> list[NetworkRow]:
    """Return the sandboxes that may have a container on that node's engine."""
    found = session.exec(_rows().where(Sandbox.node_id == node_id, is_there())).all()
    return [NetworkRow(*row) for row in found]


def of_sandbox(session: Session, sandbox_id: str) -> NetworkRow | None:
    """Return that sandbox."""
    found = session.exec(_rows().where(Sandbox.id == sandbox_id)).first()
    return None if found is None else NetworkRow(*found)


def settings_versions(session: Session, owner_ids: Collection[str]) -> dict[str, str]:
    """Return the versions of users' settings. A user without settings is left out."""
    columns = select(UserSettings.user_id, UserSettings.updated_at).where(col(UserSettings.user_id).in_(owner_ids))
    return {user_id: at.isoformat() for user_id, at in session.exec(columns).all()}


def model_urls(session: Session, vault: Vault, owner_id: str) -> tuple[str, ...]:
    """Return the base URLs that a user's LLM settings name, current or saved."""
    stored = settings_store.load(session, vault, owner_id)
    if stored is None:
        return ()
    llms = [current_llm(stored), *stored.llm_profiles.profiles.values()]
    return tuple({str(llm["base_url"]) for llm in llms if llm.get("base_url")})


def _rows() -> Any:
    return select(Sandbox.id, Sandbox.owner_id, SandboxSpec.egress).join(
        SandboxSpec, col(SandboxSpec.id) == col(Sandbox.spec_id)
    )

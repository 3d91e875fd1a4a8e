"""Settings of users: the open part as it is, the secret part encrypted as one document."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session, select

from shared.clock import now
from shared.crypto import Vault
from shared.errors import NotFound
from shared.models import User, UserSettings
from shared.users.llm_profiles import LlmProfiles, merge
from shared.users.mcp_config import MASK, Additions, add_servers, unmask_servers
from shared.users.settings import StoredSettings
from shared.users.settings_v1 import current_llm

KEYS = frozenset({"llm_api_key", "search_api_key", "sandbox_api_key"})
SEALED = KEYS | {"mcp_config", "agent_settings", "llm_profiles"}
# For these null says nothing new (V0's rule, wire contract 5), so an empty text is what clears them. The sandbox key
# is ours to add: it is shown as null, and whoever sends back what they read must not lose it.
KEPT_ON_NULL = KEYS | {"llm_model", "llm_base_url", "user_consents_to_analytics"}
CLEARED_BY_EMPTY = KEYS | {"llm_model", "llm_base_url"}


@dataclass
class Draft:
    """A user's settings under change, in clear: the open part and the part to be sealed."""

    document: dict[str, Any]
    sealed: dict[str, Any]

    def read(self) -> StoredSettings:
        """What they say by now."""
        return StoredSettings(**self.document, **self.sealed)

    def follow(self) -> None:
        """Let no profile be active that is not in force any more."""
        profiles = self.read().llm_profiles
        profiles.follow(current_llm(self.read()))
        self.keep_profiles(profiles)

    def keep_profiles(self, profiles: LlmProfiles) -> None:
        """Have these profiles instead of those there are."""
        self.sealed["llm_profiles"] = profiles.model_dump()


def load(session: Session, vault: Vault, user_id: str) -> StoredSettings | None:
    """The user's settings in clear; None when none were ever saved: `StoredSettings()` is then what holds."""
    row = session.get(UserSettings, user_id)
    return None if row is None else StoredSettings(**row.document, **_unseal(vault, row.sealed))


@contextmanager
def editing(session: Session, vault: Vault, user_id: str) -> Iterator[Draft]:
    """The user's settings as they are, to be changed by whoever holds them; they are written back at the end.

    The user is locked until the transaction ends.

    Raises:
        NotFound: there is no such user.
    """
    lock(session, user_id)
    row = session.get(UserSettings, user_id, populate_existing=True)
    draft = Draft(dict(row.document), _unseal(vault, row.sealed)) if row else Draft({}, {})
    yield draft
    row = row or UserSettings(user_id=user_id, document={}, sealed="")
    row.document, row.sealed = draft.document, vault.encrypt(json.dumps(draft.sealed))
    row.updated_at = now()
    session.add(row)
    session.flush()


def change(session: Session, vault: Vault, user_id: str, changes: Mapping[str, Any]) -> None:
    """Store the named settings and leave the others as they are.

    Args:
        session: of a transaction; the user is locked until it ends.
        vault: encrypts the secret ones.
        user_id: whose settings.
        changes: checked values in clear. None is the default, or for `KEPT_ON_NULL` what is stored; an empty
            text clears a secret; a mask keeps one.

    Raises:
        Invalid: a mask in `mcp_config` or `agent_settings` where nothing is stored.
        NotFound: there is no such user.
    """
    with editing(session, vault, user_id) as draft:
        for name, value in changes.items():
            _set(draft.sealed if name in SEALED else draft.document, name, value)
        draft.follow()


def lock(session: Session, user_id: str) -> None:
    """Let nobody else write this user's settings, secrets or tokens until the transaction ends.

    The user's row is what is locked: it is always there. SQLite's transaction is alone from its first word.

    Raises:
        NotFound: there is no such user.
    """
    # NO KEY: rows that refer to the user, their sandboxes say, may still be written.
    statement = select(User.id).where(User.id == user_id).with_for_update(key_share=True)
    if session.exec(statement).first() is None:
        raise NotFound("user", user_id)


def _set(part: dict[str, Any], name: str, value: Any) -> None:
    keeps = (value is None and name in KEPT_ON_NULL) or (value == MASK and name in KEYS)
    if keeps:
        return
    if value is None or (value == "" and name in CLEARED_BY_EMPTY):
        part.pop(name, None)
    else:
        part[name] = _resolve(name, value, part.get(name))


def _resolve(name: str, value: Any, stored: Any) -> Any:
    """What is to be stored: of a document that may hold masks, with what they stand for."""
    if name == "mcp_config":
        servers = unmask_servers(value, stored)
        return add_servers(Additions(servers), stored) if isinstance(value, Additions) else servers
    return merge(stored or {}, value) if name == "agent_settings" else value


def _unseal(vault: Vault, sealed: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(vault.decrypt(sealed))
    return document

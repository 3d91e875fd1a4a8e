"""Storage of users' settings: the open part in clear, the secret part encrypted as one document.

An LLM server's URL with credentials is stored in both: masked in the open part, and whole in the secret part.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session

from shared.clock import now
from shared.crypto import Vault
from shared.errors import Invalid
from shared.json_documents import count_bytes
from shared.models import UserSettings
from shared.sql import locks
from shared.users.llm_profiles import LlmProfiles, change_agent_settings
from shared.users.mcp_changes import change_servers
from shared.users.mcp_config import MASK, mask_url, unmask_url
from shared.users.settings import StoredSettings
from shared.users.settings_v1 import can_condense, current_llm

# Models whose credentials are not an `llm_api_key`, or that need none.
KEYLESS_MODELS = ("bedrock/", "ollama/", "ollama_chat/", "sagemaker/", "vertex_ai/")

KEYS = frozenset({"llm_api_key", "search_api_key", "sandbox_api_key"})
SEALED = KEYS | {"mcp_config", "agent_settings", "llm_profiles"}
# For these, null keeps the stored value (V0's rule, wire contract 5), and an empty text clears it. The sandbox key is
# an Agent Workspace extension: it is shown as null, and a client that returns what it read must not clear it.
KEPT_ON_NULL = KEYS | {"llm_model", "llm_base_url", "user_consents_to_analytics"}
CLEARED_BY_EMPTY = KEYS | {"llm_model", "llm_base_url"}
# The name of a URL with credentials in the secret part.
PRIVATE_URL = "private_llm_base_url"
# The max size of a user's settings, all LLM profiles included, as JSON. Requests merge into what is stored, and each
# read and each start decrypts all of it.
MAX_BYTES = 1024 * 1024


@dataclass
class Draft:
    """A user's settings during a change, in clear: the open part, and the part to be encrypted."""

    document: dict[str, Any]
    sealed: dict[str, Any]

    @property
    def bytes(self) -> int:
        """The size of both parts as JSON."""
        return count_bytes(self.document) + count_bytes(self.sealed)

    def read(self) -> StoredSettings:
        """The settings with the changes made until now."""
        return StoredSettings(**self.document, **self.sealed)

    def follow(self) -> None:
        """Deactivate the active profile if the current LLM configuration differs from it."""
        profiles = self.read().llm_profiles
        profiles.follow(current_llm(self.read()))
        self.keep_profiles(profiles)

    def apply_if_it_fits(self, change: Callable[["Draft"], object]) -> None:
        """Make a change, unless the settings would be too large with it."""
        changed = Draft(dict(self.document), dict(self.sealed))
        change(changed)
        if changed.bytes <= max(self.bytes, MAX_BYTES):
            self.document, self.sealed = changed.document, changed.sealed

    def keep_profiles(self, profiles: LlmProfiles) -> None:
        self.sealed["llm_profiles"] = profiles.model_dump()


def load(session: Session, vault: Vault, user_id: str) -> StoredSettings | None:
    """The user's settings in clear; None if none were ever saved: the defaults of `StoredSettings()` apply then."""
    row = session.get(UserSettings, user_id)
    return None if row is None else _open(vault, row).read()


def can_call(settings: StoredSettings, model: str | None) -> bool:
    """Whether the settings have a key or a server for the LLM, or the model needs neither."""
    return bool(settings.llm_api_key or settings.llm_base_url or (model or "").startswith(KEYLESS_MODELS))


@contextmanager
def editing(session: Session, vault: Vault, user_id: str) -> Iterator[Draft]:
    """Load the user's settings for the caller to change, and write them at the end of the block.

    The user is locked until the transaction ends. Settings that are too large already can be changed if they do not
    grow.

    Raises:
        Invalid: the settings would be too large.
        NotFound: the user does not exist.
    """
    locks.lock_user(session, user_id)
    row = session.get(UserSettings, user_id, populate_existing=True)
    draft = _open(vault, row) if row else Draft({}, {})
    before = draft.bytes
    yield draft
    if draft.bytes > max(before, MAX_BYTES):
        raise Invalid(f"the settings, with all LLM profiles, would be larger than {MAX_BYTES} bytes: remove some first")
    row = row or UserSettings(user_id=user_id, document={}, sealed="")
    _close(vault, row, draft)
    row.updated_at = now()
    session.add(row)
    session.flush()


def change(session: Session, vault: Vault, user_id: str, changes: Mapping[str, Any]) -> None:
    """Store the named settings. Other settings stay.

    Args:
        session: a transaction; the user is locked until it ends.
        changes: checked values in clear. None resets a setting to its default, or keeps it for `KEPT_ON_NULL`; an
            empty text clears a secret; a mask keeps one.

    Raises:
        Invalid: the condenser would have nothing to condense; or see `change_agent_settings`, `change_servers` and
            `editing`.
        NotFound: the user does not exist.
    """
    with editing(session, vault, user_id) as draft:
        could_condense = can_condense(draft.read())
        for name, value in changes.items():
            _set(draft.sealed if name in SEALED else draft.document, name, value)
        if could_condense and not can_condense(draft.read()):
            raise Invalid("condenser: keep_first must be less than half of max_size, less one")
        draft.follow()


def _set(part: dict[str, Any], name: str, value: Any) -> None:
    keeps = (value is None and name in KEPT_ON_NULL) or (value == MASK and name in KEYS)
    if keeps:
        return
    if value is None or (value == "" and name in CLEARED_BY_EMPTY):
        part.pop(name, None)
    else:
        part[name] = _resolve(name, value, part.get(name))


def _resolve(name: str, value: Any, stored: Any) -> Any:
    """The value to store, with stored values in place of masks."""
    if name == "mcp_config":
        return change_servers(value, stored)
    if name == "llm_base_url":
        return unmask_url(value, stored)
    return change_agent_settings(stored or {}, value) if name == "agent_settings" else value


def _open(vault: Vault, row: UserSettings) -> Draft:
    draft = Draft(dict(row.document), json.loads(vault.decrypt(row.sealed)))
    url, private = draft.document.get("llm_base_url") or "", draft.sealed.pop(PRIVATE_URL, None)
    if private and url == mask_url(private):
        draft.document["llm_base_url"] = private
    elif MASK in url:  # its secret part was lost
        del draft.document["llm_base_url"]
    return draft


def _close(vault: Vault, row: UserSettings, draft: Draft) -> None:
    document, sealed = dict(draft.document), dict(draft.sealed)
    url = document.get("llm_base_url") or ""
    if (shown := mask_url(url)) != url:
        document["llm_base_url"], sealed[PRIVATE_URL] = shown, url
    row.document, row.sealed = document, vault.encrypt(json.dumps(sealed))

"""Saved LLM configurations of users: they are part of the settings, and sealed with them."""

from collections.abc import Mapping
from typing import Any

from sqlmodel import Session

from shared.crypto import Vault
from shared.errors import Invalid
from shared.models import UserSettings
from shared.users import settings_store
from shared.users.llm_profiles import SECRET_FIELDS, Llm, LlmProfiles
from shared.users.mcp_config import MASK
from shared.users.settings_store import Draft
from shared.users.settings_v1 import LLM_FIELDS, current_llm


def load(session: Session, vault: Vault, user_id: str) -> LlmProfiles:
    """The user's profiles, in clear."""
    stored = settings_store.load(session, vault, user_id)
    return stored.llm_profiles if stored else LlmProfiles()


def save(
    session: Session,
    vault: Vault,
    user_id: str,
    name: str,
    llm: Mapping[str, Any] | None,
    *,
    include_secrets: bool,
    keep_key: bool,
) -> None:
    """Keep a configuration under a name.

    Args:
        session: of a transaction; the user is locked until it ends.
        vault: encrypts it.
        user_id: whose profile.
        name: of the profile; one that is there is replaced.
        llm: the configuration, in clear; None: the one in force. An `api_key` that is null or absent keeps the one
            that the profile has, an empty one clears it; a mask keeps what the profile has.
        include_secrets: keep its secrets too.
        keep_key: have the key that the profile has already, and no other.

    Raises:
        Conflict: there are as many profiles as there may be.
        Invalid: a mask where nothing is stored.
    """
    with settings_store.editing(session, vault, user_id) as draft:
        profiles = draft.read().llm_profiles
        before = profiles.profiles.get(name, {})
        config = current_llm(draft.read()) if llm is None else _resolved(llm, before)
        if keep_key and name in profiles.profiles:
            config = _without(config, {"api_key"}) | _only(before, {"api_key"})
        profiles.save(name, config if include_secrets else _without(config, SECRET_FIELDS | {"extra_headers"}))
        draft.keep_profiles(profiles)
        draft.follow()


def delete(session: Session, vault: Vault, user_id: str, name: str) -> None:
    """Forget a profile, if there is one; where it was active, the first of those that remain is put in force."""
    if session.get(UserSettings, user_id) is None:
        return
    with settings_store.editing(session, vault, user_id) as draft:
        profiles = draft.read().llm_profiles
        if profiles.profiles.pop(name, None) is None:
            return
        was_active = profiles.active == name
        profiles.active = None if was_active else profiles.active
        draft.keep_profiles(profiles)
        if was_active and profiles.profiles:
            _put_in_force(draft, next(iter(profiles.profiles)))


def activate(session: Session, vault: Vault, user_id: str, name: str) -> Llm:
    """Put a profile in force: from now on it is what the settings say of the LLM.

    Raises:
        NotFound: there is none of that name.
    """
    with settings_store.editing(session, vault, user_id) as draft:
        return _put_in_force(draft, name)


def rename(session: Session, vault: Vault, user_id: str, name: str, new_name: str) -> None:
    """Call a profile something else.

    Raises:
        NotFound: there is none of that name.
        Conflict: the new name is taken.
    """
    with settings_store.editing(session, vault, user_id) as draft:
        profiles = draft.read().llm_profiles
        profiles.rename(name, new_name)
        draft.keep_profiles(profiles)


def _put_in_force(draft: Draft, name: str) -> Llm:
    profiles = draft.read().llm_profiles
    llm = profiles.get(name)
    for field, flat in LLM_FIELDS.items():
        part = draft.sealed if flat in settings_store.SEALED else draft.document
        part.pop(flat, None)
        part |= {flat: llm[field]} if field in llm else {}
    rest = dict(draft.sealed.get("agent_settings", {}))
    rest["llm"] = _without(llm, set(LLM_FIELDS))
    draft.sealed["agent_settings"] = {section: value for section, value in rest.items() if value}
    profiles.active = name
    draft.keep_profiles(profiles)
    return llm


def _resolved(llm: Mapping[str, Any], before: Llm) -> Llm:
    """What was sent, with what is stored in place of masks and of a key that was left out."""
    sent = dict(llm)
    if sent.get("api_key") is None:
        sent["api_key"] = before.get("api_key")
    headers = sent.get("extra_headers")
    if headers:
        sent["extra_headers"] = _set_only(_unmasked(headers, before.get("extra_headers") or {}))
    return _set_only(_unmasked(sent, before))


def _set_only(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if value not in (None, "", {})}


def _unmasked(sent: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    missing = next((name for name, value in sent.items() if value == MASK and name not in stored), None)
    if missing is not None:
        raise Invalid(f"nothing is stored that the mask of {missing!r} could stand for")
    return {name: stored[name] if value == MASK else value for name, value in sent.items()}


def _without(llm: Llm, names: set[str] | frozenset[str]) -> Llm:
    return {name: value for name, value in llm.items() if name not in names}


def _only(llm: Llm, names: set[str]) -> Llm:
    return {name: value for name, value in llm.items() if name in names}

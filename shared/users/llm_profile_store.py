"""Saved LLM configurations of users: part of the settings, and encrypted with them."""

from collections.abc import Mapping
from typing import Any

from sqlmodel import Session

from shared.crypto import Vault
from shared.errors import Invalid
from shared.models import UserSettings
from shared.users import settings_store
from shared.users.llm_profiles import SECRET_FIELDS, URL_FIELDS, Llm, LlmProfiles, mask_llm
from shared.users.mcp_config import MASK, unmask_url
from shared.users.settings_store import Draft
from shared.users.settings_v1 import LLM_FIELDS, current_llm, with_stored_key


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
    """Save a configuration under a name.

    Args:
        session: a transaction; the user is locked until it ends.
        name: the name of the profile; an existing one is replaced.
        llm: the configuration, in clear; None: the current one. A null or absent `api_key` and any mask keep the value
            of the existing profile; an empty `api_key` clears it. A new profile that equals another one as that is
            shown is a copy of it, secrets included. So is one with masks that equals the current configuration.
        include_secrets: save the secrets of the configuration too.
        keep_key: keep the key of the existing profile, and ignore the one in `llm`.

    Raises:
        Conflict: the user has the maximum number of profiles already.
        Invalid: a mask has no stored value, or see `settings_store.editing`.
    """
    with settings_store.editing(session, vault, user_id) as draft:
        profiles = draft.read().llm_profiles
        current = current_llm(draft.read())
        before = profiles.profiles.get(name) or _find_original(profiles.profiles, name, llm or {}, current)
        config = current if llm is None else _resolved(llm, before)
        if keep_key and name in profiles.profiles:
            kept = {"api_key": before["api_key"]} if "api_key" in before else {}
            config = _without(config, {"api_key"}) | kept
        profiles.save(name, config if include_secrets else _without(config, SECRET_FIELDS | {"extra_headers"}))
        draft.keep_profiles(profiles)
        draft.follow()


def delete(session: Session, vault: Vault, user_id: str, name: str) -> None:
    """Delete a profile, if it exists. If it was active, the first remaining profile is activated.

    An active profile is stored twice: one that is too large for that is not activated.
    """
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
            draft.apply_if_it_fits(lambda successor: _activate(successor, next(iter(profiles.profiles))))


def activate(session: Session, vault: Vault, user_id: str, name: str) -> Llm:
    """Activate a profile: copy its configuration into the LLM settings.

    If it has no key, the key of the settings stays, if this was stored for the same LLM server.

    Raises:
        Invalid: see `settings_store.editing`.
        NotFound: no profile has that name.
    """
    with settings_store.editing(session, vault, user_id) as draft:
        return _activate(draft, name)


def rename(session: Session, vault: Vault, user_id: str, name: str, new_name: str) -> None:
    """Rename a profile. If the settings name it as the profile for titles, they name it by its new name.

    Raises:
        NotFound: no profile has that name.
        Conflict: another profile has the new name.
    """
    with settings_store.editing(session, vault, user_id) as draft:
        settings = draft.read()
        profiles = settings.llm_profiles
        profiles.rename(name, new_name)
        draft.keep_profiles(profiles)
        if settings.title_llm_profile == name:
            draft.document["title_llm_profile"] = new_name


def _activate(draft: Draft, name: str) -> Llm:
    stored = draft.read()
    profiles = stored.llm_profiles
    llm = with_stored_key(profiles.get(name), stored)
    for field, flat in LLM_FIELDS.items():
        part = draft.sealed if flat in settings_store.SEALED else draft.document
        part.pop(flat, None)
        part |= {flat: llm[field]} if field in llm else {}
    remaining = dict(draft.sealed.get("agent_settings", {}))
    remaining["llm"] = _without(llm, set(LLM_FIELDS))
    draft.sealed["agent_settings"] = {section: value for section, value in remaining.items() if value}
    profiles.active = name
    draft.keep_profiles(profiles)
    return llm


def _find_original(saved: Mapping[str, Llm], name: str, llm: Mapping[str, Any], current: Llm) -> Llm:
    """The configuration that a client copies by sending what it was shown; empty: none.

    Of several that are shown alike, it is the one after which the copy is named, as Agent Canvas does.
    """
    sent = _set_only(llm)
    alike = [known for known, config in saved.items() if _as_shown(config) == sent]
    if alike:
        return saved[max(alike, key=lambda known: name.startswith(known) * len(known))]
    # Without masks, a configuration like the current one may be meant to have no key of its own.
    return current if MASK in str(sent) and _as_shown(current) == sent else {}


def _as_shown(config: Llm) -> Llm:
    return _without(mask_llm(config), {"api_key"})


def _resolved(llm: Mapping[str, Any], before: Llm) -> Llm:
    """The sent configuration, with stored values in place of masks and of a missing key."""
    sent = dict(llm)
    if sent.get("api_key") is None:
        sent["api_key"] = before.get("api_key")
    headers = sent.get("extra_headers")
    if headers:
        sent["extra_headers"] = _set_only(_unmasked(headers, before.get("extra_headers") or {}))
    if overrides := sent.get("capability_overrides"):
        sent["capability_overrides"] = _set_only(overrides)
    return _set_only(_unmasked(sent, before))


def _set_only(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if value not in (None, "", {})}


def _unmasked(sent: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    missing = next((name for name, value in sent.items() if value == MASK and name not in stored), None)
    if missing is not None:
        raise Invalid(f"the mask of {missing!r} has no stored value")
    return {name: _unmasked_value(name, value, stored.get(name)) for name, value in sent.items()}


def _unmasked_value(name: str, value: Any, stored: Any) -> Any:
    if value == MASK:
        return stored
    return unmask_url(value, stored) if name in URL_FIELDS and value else value


def _without(llm: Llm, names: set[str] | frozenset[str]) -> Llm:
    return {name: value for name, value in llm.items() if name not in names}

"""Custom secrets and git provider tokens, encrypted one by one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func
from sqlmodel import Session, col, select

from shared.clock import now
from shared.crypto import Vault
from shared.errors import Invalid
from shared.models import ProviderToken, Secret
from shared.store.user_settings import lock
from shared.user_settings import MASK

MOST_SECRETS = 200


@dataclass(frozen=True)
class CustomSecret:
    """A secret that the user's conversations are given."""

    value: str = field(repr=False)
    description: str | None


@dataclass(frozen=True)
class ProviderCredential:
    """How the user is known to a git provider."""

    # None: the user named a host, and no token yet.
    token: str | None = field(repr=False)
    account_id: str | None
    host: str | None


def custom_secrets(session: Session, vault: Vault, user_id: str) -> dict[str, CustomSecret]:
    """The user's custom secrets in clear, by name."""
    return {
        row.name: CustomSecret(vault.decrypt(row.ciphertext), row.description) for row in _secrets(session, user_id)
    }


def describe_secrets(session: Session, user_id: str) -> dict[str, str | None]:
    """The descriptions of the user's custom secrets, by name; nothing is decrypted."""
    return {row.name: row.description for row in _secrets(session, user_id)}


def provider_tokens(session: Session, vault: Vault, user_id: str) -> dict[str, ProviderCredential]:
    """What is stored for each git provider, tokens in clear."""
    return {
        row.provider: ProviderCredential(
            vault.decrypt(row.ciphertext) if row.ciphertext else None, row.account_id, row.host
        )
        for row in _tokens(session, user_id)
    }


def provider_hosts(session: Session, user_id: str) -> dict[str, str | None]:
    """The hosts of the providers whose tokens are stored; nothing is decrypted."""
    return {row.provider: row.host for row in _tokens(session, user_id) if row.ciphertext}


def put_custom_secrets(session: Session, vault: Vault, user_id: str, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Add or change the named secrets; the others stay.

    Args:
        session: of a transaction; the user is locked until it ends.
        vault: encrypts the values.
        user_id: whose secrets.
        entries: `secret` and `description` by name. An empty or masked `secret` keeps what is stored, and
            makes nothing where nothing is; an absent `description` keeps the stored one.

    Raises:
        Invalid: the user would have more than `MOST_SECRETS`.
    """
    lock(session, user_id)
    stored = {row.name: row for row in _secrets(session, user_id)}
    for name, entry in entries.items():
        row, value = stored.get(name), _given(entry.get("secret"))
        if row is None and value is not None:
            row = Secret(user_id=user_id, name=name, ciphertext="")
        if row is not None:
            row.ciphertext = row.ciphertext if value is None else vault.encrypt(value)
            row.description = entry.get("description", row.description)
            _touch(session, row)
    _check_count(session, user_id)


def put_provider_tokens(session: Session, vault: Vault, user_id: str, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Add or change what is stored for the named providers; the others stay.

    Args:
        session: of a transaction; the user is locked until it ends.
        vault: encrypts the tokens.
        user_id: whose tokens.
        entries: `token`, `user_id` and `host` by provider. An empty or masked `token` keeps what is stored;
            the other two are kept where absent.
    """
    lock(session, user_id)
    stored = {row.provider: row for row in _tokens(session, user_id)}
    for provider, entry in entries.items():
        row, token = stored.get(provider), _given(entry.get("token"))
        if row is None and not (token or entry.get("host")):
            continue
        row = row or ProviderToken(user_id=user_id, provider=provider)
        row.ciphertext = row.ciphertext if token is None else vault.encrypt(token)
        row.account_id = entry.get("user_id", row.account_id) or None
        row.host = entry.get("host", row.host) or None
        _touch(session, row)
    session.flush()


def _secrets(session: Session, user_id: str) -> list[Secret]:
    return list(session.exec(select(Secret).where(Secret.user_id == user_id).order_by(col(Secret.name))))


def _tokens(session: Session, user_id: str) -> list[ProviderToken]:
    statement = select(ProviderToken).where(ProviderToken.user_id == user_id)
    return list(session.exec(statement.order_by(col(ProviderToken.provider))))


def _given(value: str | None) -> str | None:
    return None if value in (None, "", MASK) else value


def _touch(session: Session, row: Secret | ProviderToken) -> None:
    row.updated_at = now()
    session.add(row)


def _check_count(session: Session, user_id: str) -> None:
    session.flush()
    count = session.exec(select(func.count()).select_from(Secret).where(Secret.user_id == user_id)).one()
    if count > MOST_SECRETS:
        raise Invalid(f"at most {MOST_SECRETS} custom secrets are kept for a user, this would make {count}")

"""Custom secrets and git provider tokens, each encrypted separately."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func
from sqlmodel import Session, col, select

from shared.clock import now
from shared.crypto import Vault
from shared.errors import Invalid, NotFound
from shared.models import ProviderToken, Secret
from shared.sql.pagination import Order, Page, read_page
from shared.users.mcp_config import MASK
from shared.users.settings_store import lock

MAX_SECRETS = 200


@dataclass(frozen=True)
class CustomSecret:
    """A secret that is available in the user's conversations."""

    value: str = field(repr=False)
    description: str | None


@dataclass(frozen=True)
class ProviderCredential:
    """A user's credentials for a git provider."""

    # None: the user has set a host but no token yet.
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


def find_value(session: Session, vault: Vault, user_id: str, name: str) -> str | None:
    """The value of a custom secret; None if no secret has that name."""
    row = _find_secret(session, user_id, name)
    return None if row is None else vault.decrypt(row.ciphertext)


def find_token(session: Session, vault: Vault, user_id: str, provider: str) -> str | None:
    """The token for a git provider; None if none is stored."""
    row = next((row for row in _tokens(session, user_id) if row.provider == provider), None)
    return vault.decrypt(row.ciphertext) if row and row.ciphertext else None


def provider_tokens(session: Session, vault: Vault, user_id: str) -> dict[str, ProviderCredential]:
    """The stored credentials of each git provider, tokens in clear."""
    return {
        row.provider: ProviderCredential(
            vault.decrypt(row.ciphertext) if row.ciphertext else None, row.account_id, row.host
        )
        for row in _tokens(session, user_id)
    }


def provider_hosts(session: Session, user_id: str) -> dict[str, str | None]:
    """The hosts of the providers whose tokens are stored; nothing is decrypted."""
    return {row.provider: row.host for row in _tokens(session, user_id) if row.ciphertext}


def provider_accounts(session: Session, user_id: str) -> list[ProviderToken]:
    """The providers whose tokens are stored; nothing is decrypted."""
    return [row for row in _tokens(session, user_id) if row.ciphertext]


def put_custom_secrets(session: Session, vault: Vault, user_id: str, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Add or change the named secrets. Other secrets stay.

    Args:
        session: a transaction; the user is locked until it ends.
        vault: encrypts the values.
        user_id: the owner of the secrets.
        entries: `secret` and `description` by name. An empty or masked `secret` keeps the stored value, and
            creates no new secret; an absent `description` keeps the stored one.

    Raises:
        Invalid: the user would have more than `MAX_SECRETS`.
    """
    lock(session, user_id)
    stored = {row.name: row for row in _secrets(session, user_id)}
    for name, entry in entries.items():
        row, value = stored.get(name), _new_value(entry.get("secret"))
        if row is None and value is not None:
            row = Secret(user_id=user_id, name=name, ciphertext="")
        if row is not None:
            row.ciphertext = row.ciphertext if value is None else vault.encrypt(value)
            row.description = entry.get("description", row.description)
            _touch(session, row)
    _check_count(session, user_id)


def put_provider_tokens(session: Session, vault: Vault, user_id: str, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Add or change the credentials for the named providers. Other providers stay.

    Args:
        session: a transaction; the user is locked until it ends.
        vault: encrypts the tokens.
        user_id: the owner of the tokens.
        entries: `token`, `user_id` and `host` by provider. An empty or masked `token` keeps the stored one;
            an absent `user_id` or `host` does too.
    """
    lock(session, user_id)
    stored = {row.provider: row for row in _tokens(session, user_id)}
    for provider, entry in entries.items():
        row, token = stored.get(provider), _new_value(entry.get("token"))
        if row is None and not (token or entry.get("host")):
            continue
        row = row or ProviderToken(user_id=user_id, provider=provider)
        row.ciphertext = row.ciphertext if token is None else vault.encrypt(token)
        row.account_id = entry.get("user_id", row.account_id) or None
        row.host = entry.get("host", row.host) or None
        _touch(session, row)
    session.flush()


def search_secrets(
    session: Session, user_id: str, name_contains: str | None, page_id: str | None, limit: int
) -> Page[Secret]:
    """A page of the user's custom secrets by name; nothing is decrypted.

    Raises:
        Invalid: this service did not issue the page id.
    """
    statement = select(Secret).where(Secret.user_id == user_id)
    if name_contains:
        statement = statement.where(func.lower(Secret.name).contains(name_contains.lower(), autoescape=True))
    return read_page(session, statement, Order(Secret.name, Secret.id), page_id, limit)


def change_custom_secret(
    session: Session, user_id: str, name: str, new_name: str, described: Mapping[str, Any]
) -> None:
    """Change the name or the description of a secret. Its value stays.

    Args:
        session: a transaction; the user is locked until it ends.
        user_id: the owner of the secret.
        name: the present name.
        new_name: the new name, or the present one.
        described: the new `description`; an absent one stays.

    Raises:
        NotFound: no secret has that name.
        Invalid: another secret has the new name.
    """
    row = _locked_secret(session, user_id, name)
    if new_name != name:
        check_untaken(session, user_id, new_name)
    row.name, row.description = new_name, described.get("description", row.description)
    _touch(session, row)
    session.flush()


def check_untaken(session: Session, user_id: str, name: str) -> None:
    """Check that none of the user's secrets has this name, and keep it free until the transaction ends.

    Raises:
        Invalid: a secret has this name.
    """
    lock(session, user_id)
    if _find_secret(session, user_id, name) is not None:
        raise Invalid(f"there is a secret named {name!r} already")


def delete_custom_secret(session: Session, user_id: str, name: str) -> None:
    """Delete a secret.

    Raises:
        NotFound: no secret has that name.
    """
    session.delete(_locked_secret(session, user_id, name))
    session.flush()


def delete_provider_tokens(session: Session, user_id: str) -> None:
    """Delete all stored credentials for git providers."""
    lock(session, user_id)
    for row in _tokens(session, user_id):
        session.delete(row)
    session.flush()


def _locked_secret(session: Session, user_id: str, name: str) -> Secret:
    lock(session, user_id)
    row = _find_secret(session, user_id, name)
    if row is None:
        raise NotFound("secret", name, by="name")
    return row


def _find_secret(session: Session, user_id: str, name: str) -> Secret | None:
    return session.exec(select(Secret).where(Secret.user_id == user_id, Secret.name == name)).one_or_none()


def _secrets(session: Session, user_id: str) -> list[Secret]:
    return list(session.exec(select(Secret).where(Secret.user_id == user_id).order_by(col(Secret.name))))


def _tokens(session: Session, user_id: str) -> list[ProviderToken]:
    statement = select(ProviderToken).where(ProviderToken.user_id == user_id)
    return list(session.exec(statement.order_by(col(ProviderToken.provider))))


def _new_value(value: str | None) -> str | None:
    return None if value in (None, "", MASK) else value


def _touch(session: Session, row: Secret | ProviderToken) -> None:
    row.updated_at = now()
    session.add(row)


def _check_count(session: Session, user_id: str) -> None:
    session.flush()
    count = session.exec(select(func.count()).select_from(Secret).where(Secret.user_id == user_id)).one()
    if count > MAX_SECRETS:
        raise Invalid(f"a user can have at most {MAX_SECRETS} custom secrets, this would make {count}")

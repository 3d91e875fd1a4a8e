"""Stored secrets of a user that no secret key decrypts, because their key is lost: they must go before others come."""

from collections.abc import Iterator
from typing import Any

from sqlmodel import Session, select

from shared.clock import now
from shared.crypto import Vault
from shared.models import ProviderToken, Secret, UserSettings
from shared.sql import locks

SETTINGS = "settings: keys, MCP servers and LLM profiles"


def find(session: Session, vault: Vault, user_id: str) -> list[str]:
    """Describe the user's secrets that can't be decrypted."""
    return [_describe(row) for row in _find_rows(session, vault, user_id)]


def remove(session: Session, vault: Vault, user_id: str) -> None:
    """Remove the user's secrets that can't be decrypted. The user is locked until the transaction ends.

    What is not secret stays: the other settings, and the hosts of git providers.
    """
    locks.lock_user(session, user_id)
    for row in list(_find_rows(session, vault, user_id)):
        match row:
            case UserSettings():
                row.sealed, row.updated_at = vault.encrypt("{}"), now()
            case ProviderToken():
                row.ciphertext, row.updated_at = None, now()
            case _:
                session.delete(row)


def _find_rows(session: Session, vault: Vault, user_id: str) -> Iterator[Any]:
    for table, column in ((UserSettings, "sealed"), (Secret, "ciphertext"), (ProviderToken, "ciphertext")):
        for row in session.exec(select(table).where(table.user_id == user_id)).all():
            token = getattr(row, column)
            if token and not _is_readable(vault, token):
                yield row


def _describe(row: Any) -> str:
    match row:
        case UserSettings():
            return SETTINGS
        case ProviderToken():
            return f"token for {row.provider}"
    return f"secret {row.name}"


def _is_readable(vault: Vault, token: str) -> bool:
    try:
        vault.decrypt(token)
    except ValueError:
        return False
    return True

"""Stored secrets, by which a backup recognizes the secret keys: a backup with other keys would be of no use."""

from typing import Any

from sqlalchemy import Connection, select
from sqlmodel import col

from shared.crypto import MissingKey, Vault
from shared.errors import Conflict
from shared.models import Sandbox, Secret, UserSettings

# When secrets were written, and their ciphertexts.
STORED: tuple[tuple[Any, Any], ...] = (
    (col(Sandbox.created_at), col(Sandbox.session_key)),
    (col(UserSettings.updated_at), col(UserSettings.sealed)),
    (col(Secret.updated_at), col(Secret.ciphertext)),
)


def require_key(connection: Connection, vault: Vault, place: str) -> None:
    """Check that the secret that was stored last can be decrypted. Older ones may need a key that was lost.

    Args:
        place: where the keys come from, for the error.

    Raises:
        Conflict: it can't be decrypted. The service runs with other keys.
    """
    newest = (connection.execute(select(*one).order_by(one[0].desc()).limit(1)).first() for one in STORED)
    found = [tuple(row) for row in newest if row is not None]
    try:
        vault.decrypt(max(found)[1] if found else "")
    except MissingKey:
        raise Conflict(
            f"{place}, does not decrypt the secret that was stored last, and would not after a restore: use the secret "
            "keys with which the service runs; or, if its key is lost, start a sandbox with the new key first; nothing "
            "was backed up"
        ) from None
    except ValueError:
        return  # damaged, or there is none

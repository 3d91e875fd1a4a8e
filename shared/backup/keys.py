"""The keys of an installation, encrypted with a passphrase: a backup alone decrypts no secret."""

import base64
import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from shared.crypto import Vault
from shared.errors import Invalid
from shared.reasons import more
from shared.settings import Settings

# The cost of one guess: 128 MiB and about half a second.
COST = {"n": 2**17, "r": 8, "p": 1}
MIN_LENGTH = 12
# The entry of the troubleshooting page.
MALFORMED = "a-secret-key-is-malformed-or-a-secret-cannot-be-decrypted"


def lock(keys: dict[str, str], passphrase: str) -> str:
    """Encrypt keys.

    Raises:
        Invalid: the passphrase is too short to keep them safe.
    """
    if len(passphrase) < MIN_LENGTH:
        raise Invalid(f"the passphrase must have {MIN_LENGTH} characters or more: it protects every secret")
    salt = secrets.token_bytes(16)
    token = _fernet(passphrase, salt, COST).encrypt(json.dumps(keys).encode())
    return json.dumps({"salt": salt.hex(), **COST, "token": token.decode()})


def unlock(text: str, passphrase: str) -> dict[str, str]:
    """Decrypt keys.

    Raises:
        Invalid: the passphrase is wrong, or the text is damaged.
    """
    # Earlier backups were encrypted without the white space around a passphrase that was read from a file.
    for tried in dict.fromkeys((passphrase, passphrase.strip())):
        with suppress(InvalidToken, KeyError, TypeError, ValueError):
            return _decrypt(json.loads(text), tried)
    raise Invalid("the passphrase does not decrypt the keys of this backup, or their file is damaged")


def split(text: str) -> list[str]:
    """Split the text of `AW_SECRET_KEYS`, or of the secret key's file, into its keys."""
    return [key.strip() for key in text.replace("\n", ",").split(",") if key.strip()]


def read_vault(settings: Settings) -> Vault:
    """The vault of an installation, for a process that does not work without it.

    Raises:
        Invalid: the secret key is missing or malformed, or its file cannot be read.
    """
    return open_vault(read_keys(settings), place_of(settings))


def read_keys(settings: Settings) -> list[str]:
    """The secret keys of an installation.

    Raises:
        Invalid: there is none, or their file cannot be read, or is not text.
    """
    place = place_of(settings)
    try:
        return settings.vault_keys
    except FileNotFoundError as error:
        raise Invalid(f"no secret key in {place}: {error.strerror} {more('the-secret-key-is-gone')}") from None
    except OSError as error:
        raise Invalid(f"{error.filename} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Invalid(f"{place}: the key is not text {more(MALFORMED)}") from None


def open_vault(secret_keys: Sequence[str], place: str) -> Vault:
    """The vault of these secret keys.

    Args:
        place: where they come from, for an error.

    Raises:
        Invalid: there is none, or one is malformed.
    """
    try:
        return Vault(secret_keys)
    except ValueError as error:
        raise Invalid(f"{place}: {error} {more(MALFORMED)}") from None


def place_of(settings: Settings) -> str:
    """Where an installation's secret keys are."""
    return f"AW_SECRET_KEYS, or {settings.secret_key_file}"


def _decrypt(stored: Mapping[str, Any], passphrase: str) -> dict[str, str]:
    cost = {name: min(int(stored[name]), COST[name]) for name in COST}
    fernet = _fernet(passphrase, bytes.fromhex(stored["salt"]), cost)
    found: dict[str, str] = json.loads(fernet.decrypt(stored["token"]))
    return found


def _fernet(passphrase: str, salt: bytes, cost: dict[str, int]) -> Fernet:
    key = Scrypt(salt=salt, length=32, **cost).derive(passphrase.encode())
    return Fernet(base64.urlsafe_b64encode(key))

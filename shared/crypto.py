"""Secrets at rest: values are encrypted; callers' keys are stored only as digests."""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from math import inf
from time import monotonic

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

KEY_PREFIX = "aw_"
# The format of a Fernet token: its first byte, the number of its unencrypted bytes, and the size of an encrypted block.
VERSION, FIXED_BYTES, BLOCK_BYTES = b"\x80", 57, 16

RECENT_SECONDS = 60.0


class MissingKey(ValueError):
    """A token was written with a key that this process does not have: another process may have it."""


class Vault:
    """Encrypts, decrypts and digests with a list of keys: the first key writes, all keys read."""

    def __init__(self, keys: Sequence[str]) -> None:
        """Accept Fernet keys (32 bytes, url-safe base64).

        Raises:
            ValueError: no key, or a malformed one.
        """
        if not keys:
            raise ValueError("at least one secret key is required")
        self._keys = [key.encode() for key in keys]
        self._fernet = MultiFernet([Fernet(key) for key in self._keys])
        self._missed_at = -inf

    def encrypt(self, text: str) -> str:
        """The text as an opaque token that only the key can decrypt."""
        return self._fernet.encrypt(text.encode()).decode()

    def decrypt(self, token: str) -> str:
        """The text of a token.

        Raises:
            MissingKey: the token was written with a key that is not in the list.
            ValueError: the token is damaged.
        """
        try:
            return self._fernet.decrypt(token.encode()).decode()
        except InvalidToken:
            is_missing = _is_well_formed(token)
            self._missed_at = monotonic() if is_missing else self._missed_at
            raise (MissingKey if is_missing else ValueError)(
                "cannot decrypt a stored secret: AW_SECRET_KEYS must include the key that encrypted it"
            ) from None

    def decrypt_if_possible(self, token: str) -> str | None:
        """The text of a token; None if it was written with a key that is not in the list.

        Raises:
            ValueError: the token is damaged.
        """
        try:
            return self.decrypt(token)
        except MissingKey:
            return None

    def find_problem(self) -> str | None:
        """Return which key was missing within the last minute; None: none was."""
        is_recent = monotonic() < self._missed_at + RECENT_SECONDS
        return "its worker's AW_SECRET_KEYS lack the key of a stored secret" if is_recent else None

    def digest(self, key: str) -> str:
        """The keyed digest under which a caller's key is stored."""
        return _digest(self._keys[0], key)

    def digests(self, key: str) -> list[str]:
        """Every digest under which a caller's key may be stored, so that secret keys can be rotated."""
        return [_digest(pepper, key) for pepper in self._keys]

    def derive(self, purpose: str) -> str:
        """A token derived from the first key for one purpose. It does not reveal the key."""
        return self.derive_all(purpose)[0]

    def derive_all(self, purpose: str) -> list[str]:
        """The tokens derived from each key for one purpose, so that secret keys can be rotated."""
        return [hmac.new(key, purpose.encode(), hashlib.sha256).hexdigest() for key in self._keys]

    def new_session_key(self) -> tuple[str, str]:
        """A new session key as it is stored: its token, and its digest."""
        key = new_api_key()
        return self.encrypt(key), self.digest(key)


def new_secret_key() -> str:
    return Fernet.generate_key().decode()


def new_api_key() -> str:
    """A new API or session key: 256 random bits."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def _is_well_formed(token: str) -> bool:
    """Whether a token has the version and the length of a Fernet token, which damaged tokens rarely have."""
    try:
        content = base64.urlsafe_b64decode(token)
    except ValueError:
        return False
    return content[:1] == VERSION and len(content) % BLOCK_BYTES == FIXED_BYTES % BLOCK_BYTES


def _digest(pepper: bytes, key: str) -> str:
    return hmac.new(pepper, key.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()

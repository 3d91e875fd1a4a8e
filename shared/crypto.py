"""Secrets at rest: values are encrypted, keys that callers present are kept as digests only."""

import hashlib
import hmac
import secrets
from collections.abc import Sequence

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

KEY_PREFIX = "aw_"


class Vault:
    """Encrypts, decrypts and digests with a list of keys: the first one writes, all of them read."""

    def __init__(self, keys: Sequence[str]) -> None:
        """Take Fernet keys (32 bytes, url-safe base64).

        Raises:
            ValueError: no key, or a malformed one.
        """
        if not keys:
            raise ValueError("at least one secret key is needed")
        self._keys = [key.encode() for key in keys]
        self._fernet = MultiFernet([Fernet(key) for key in self._keys])

    def encrypt(self, text: str) -> str:
        """The text as an opaque token that only a holder of the key can read."""
        return self._fernet.encrypt(text.encode()).decode()

    def decrypt(self, token: str) -> str:
        """The text behind a token.

        Raises:
            ValueError: the token was written with a key we do not have, or was damaged.
        """
        try:
            return self._fernet.decrypt(token.encode()).decode()
        except InvalidToken:
            raise ValueError("a stored secret can't be decrypted: is AW_SECRET_KEYS the one that wrote it?") from None

    def digest(self, key: str) -> str:
        """The keyed digest under which a presented key is stored."""
        return _digest(self._keys[0], key)

    def digests(self, key: str) -> list[str]:
        """Every digest a presented key may be stored under, so that secret keys can be rotated."""
        return [_digest(pepper, key) for pepper in self._keys]


def new_secret_key() -> str:
    """A fresh key for a `Vault`."""
    return Fernet.generate_key().decode()


def new_api_key() -> str:
    """A fresh API or session key: 256 random bits."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def _digest(pepper: bytes, key: str) -> str:
    return hmac.new(pepper, key.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()

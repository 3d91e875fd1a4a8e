"""Types of fields that settings are made of: no message of theirs repeats what was sent."""

import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from shared.users.secret_names import MAX_VALUE_BYTES, check_form

MAX_KEY_BYTES = 20_000
MAX_TEXT_LENGTH = 10_000

CONTROL = re.compile(r"[\x00-\x1f\x7f]")
BLANK = re.compile(r"[\x00-\x20\x7f]")


class Strict(BaseModel):
    """No conversions: true is no number, and 1 is no text. Unknown fields are ignored, as V1 does."""

    model_config = ConfigDict(strict=True, hide_input_in_errors=True)


def check_names(named: Any) -> Any:
    """Refuse a mapping with names that no variable could have."""
    # Here and not in the keys' type: there the location of the error would repeat the name, which may be a value.
    if isinstance(named, dict):
        check_form(named)
    return named


def _check_key(secret: SecretStr) -> SecretStr:
    # What a paste brings along; a header could not carry it.
    sent = _check_size(secret, MAX_KEY_BYTES).get_secret_value()
    key = sent.strip()
    if sent and not key:
        raise ValueError("a key is more than blanks")
    if CONTROL.search(key):
        raise ValueError("a key has no line breaks or other control characters")
    return SecretStr(key)


def _check_secret(secret: SecretStr) -> SecretStr:
    return _check_size(secret, MAX_VALUE_BYTES)


def _check_size(secret: SecretStr, most: int) -> SecretStr:
    try:
        size = len(secret.get_secret_value().encode())
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair can't be stored") from None
    if size > most:
        raise ValueError(f"longer than {most} bytes")
    return secret


def _check_base_url(url: str) -> str:
    if url and not (url.startswith(("http://", "https://")) and _names_host(url)):
        raise ValueError("a base URL begins with http:// or https:// and names a host")
    return url


def _check_host(host: str) -> str:
    if host and not _names_host(host if "://" in host else f"https://{host}"):
        raise ValueError("a host is a name or an address; a port from 1 to 65535 may follow")
    return host


def _names_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0 and not BLANK.search(url)
    except ValueError:
        return False


Text = Annotated[str, Field(max_length=MAX_TEXT_LENGTH)]
# What ends up in a header, a command or a commit: one line.
Line = Annotated[str, Field(max_length=320, pattern=r"^[^\x00-\x1f\x7f]*$")]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
# An empty text stands for none.
BaseUrl = Annotated[Text, AfterValidator(_check_base_url)]
Host = Annotated[
    str, Field(max_length=256, pattern=r"^(https?://)?[A-Za-z0-9._~:/\[\]%-]*$"), AfterValidator(_check_host)
]
Key = Annotated[SecretStr, AfterValidator(_check_key)]
Value = Annotated[SecretStr, AfterValidator(_check_secret)]

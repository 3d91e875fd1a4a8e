"""Types of fields that bodies share, and checks of texts that end up in shells, URLs, headers and environments.

No error message of the types for settings repeats what was sent.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    WithJsonSchema,
)

from shared.conversations.webhook_reports import MAX_MODEL_LENGTH
from shared.states import Stage
from shared.users.secrets import MAX_VALUE_BYTES, check_form, check_requested

MAX_KEY_BYTES = 20_000
MAX_TEXT_LENGTH = 10_000

CONTROL = re.compile(r"[\x00-\x1f\x7f]")
SPACE_OR_CONTROL = re.compile(r"[\x00-\x20\x7f]")
# owner/name, with any number of groups between them. Projects and repositories of Azure DevOps may have blanks in them.
PART = r"[A-Za-z0-9_.~][A-Za-z0-9_.~-]*(?: +[A-Za-z0-9_.~-]+)*"
REPOSITORY = re.compile(rf"{PART}(?:/{PART})+")
# git-check-ref-format(1), and no leading dash, which a command would read as an option.
BAD_BRANCH = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|^[-/]|/$|\.$|^@$|(?:^|/)\.|\.lock(?:/|$)")


class Strict(BaseModel):
    """A model without type conversions: true is not a number, and 1 is not a text. V1 ignores unknown fields, too."""

    model_config = ConfigDict(strict=True, hide_input_in_errors=True)


def check_names(named: Any) -> Any:
    """Refuse a mapping with names that no environment variable can have.

    This runs on the mapping and not on the type of its keys: there, the location of the error would repeat the name,
    which may be a value.
    """
    if isinstance(named, dict):
        check_form(named)
    return named


def check_secret_names(secrets: Any) -> Any:
    """Check the names of one conversation's secrets, before their values are validated.

    Raises:
        ValueError: too many, or badly named. The message does not quote an impossible name: it may be a value.
    """
    if isinstance(secrets, dict):
        check_requested(secrets)
    return secrets


def check_repository(name: str) -> str:
    """Check a repository's path at its provider.

    Raises:
        ValueError: the path is not `owner/name`, or has characters that no path needs.
    """
    if not REPOSITORY.fullmatch(name) or any(part in {".", ".."} for part in name.split("/")):
        raise ValueError("a repository must be owner/name: letters, digits, '.', '_', '~', '-' and inner blanks")
    return name


def check_branch(name: str) -> str:
    """Check a branch's name.

    Raises:
        ValueError: git does not allow the name.
    """
    if BAD_BRANCH.search(name):
        raise ValueError("git does not allow this name for a branch")
    return name


def _check_key(secret: SecretStr) -> SecretStr:
    # Pasted keys often have blanks around them, which a header could not carry.
    sent = _check_size(secret, MAX_KEY_BYTES).get_secret_value()
    key = sent.strip()
    if sent and not key:
        raise ValueError("a key must not be blank")
    if CONTROL.search(key):
        raise ValueError("a key must not have line breaks or other control characters")
    return SecretStr(key)


def _check_secret(secret: SecretStr) -> SecretStr:
    return _check_size(secret, MAX_VALUE_BYTES)


def _check_size(secret: SecretStr, max_bytes: int) -> SecretStr:
    try:
        size = len(secret.get_secret_value().encode())
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair can't be stored") from None
    if size > max_bytes:
        raise ValueError(f"longer than {max_bytes} bytes")
    return secret


def _check_base_url(url: str) -> str:
    if url and not (url.startswith(("http://", "https://")) and _names_host(url)):
        raise ValueError("a base URL must begin with http:// or https:// and name a host")
    return url


def _check_host(host: str) -> str:
    if host and not _names_host(host if "://" in host else f"https://{host}"):
        raise ValueError("a host must be a name or an address; a port from 1 to 65535 may follow")
    return host


def _names_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0 and not SPACE_OR_CONTROL.search(url)
    except ValueError:
        return False


def _write_time(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _none_if_blank(value: Any) -> Any:
    return None if isinstance(value, str) and not value.strip() else value


def _none_if_head(value: Any) -> Any:
    return None if value == "HEAD" else _none_if_blank(value)


# --- settings -------------------------------------------------------------------------------------------------------

Text = Annotated[str, Field(max_length=MAX_TEXT_LENGTH)]
# One line: it ends up in a header, a command or a commit.
Line = Annotated[str, Field(max_length=320, pattern=r"^[^\x00-\x1f\x7f]*$")]
# A longer name fits into no conversation's row.
ModelName = Annotated[str, Field(max_length=MAX_MODEL_LENGTH)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
# An empty URL means none.
BaseUrl = Annotated[Text, AfterValidator(_check_base_url)]
Host = Annotated[
    str, Field(max_length=256, pattern=r"^(https?://)?[A-Za-z0-9._~:/\[\]%-]*$"), AfterValidator(_check_host)
]
Key = Annotated[SecretStr, AfterValidator(_check_key)]
Value = Annotated[SecretStr, AfterValidator(_check_secret)]

# --- requests about a conversation ----------------------------------------------------------------------------------

BlankIsNone = BeforeValidator(_none_if_blank)
ShortText = Annotated[str, Field(max_length=500)]
RepositoryName = Annotated[str, Field(max_length=500), AfterValidator(check_repository)]
# `HEAD` is no branch: OpenHands' CLI sends it from a clone that is on none, as `git rev-parse --abbrev-ref` prints it.
OptionalBranch = Annotated[
    Annotated[str, Field(max_length=255), AfterValidator(check_branch)] | None, BeforeValidator(_none_if_head)
]

# --- responses ------------------------------------------------------------------------------------------------------

Item = TypeVar("Item")


def one_of(words: Iterable[str]) -> WithJsonSchema:
    """List the possible values in the OpenAPI document. Nothing is checked: the values were checked on the way in."""
    return WithJsonSchema({"type": "string", "enum": list(words)})


# ISO 8601, UTC, microseconds, `Z` (wire contract, section 0).
Time = Annotated[
    datetime,
    PlainSerializer(_write_time, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}, mode="serialization"),
]
SandboxStatus = Annotated[str, one_of(("STARTING", "RUNNING", "PAUSED", "ERROR", "MISSING"))]
StartTaskStatus = Annotated[str, one_of(Stage)]
ExecutionStatus = Annotated[
    str,
    one_of(("idle", "running", "paused", "waiting_for_confirmation", "finished", "error", "stuck", "deleting")),
]


class Success(BaseModel):
    """The response to a command."""

    success: bool = True


class PageOf(BaseModel, Generic[Item]):
    """One page of a list; `next_page_id` is opaque, and null on the last page."""

    items: list[Item]
    next_page_id: str | None = None

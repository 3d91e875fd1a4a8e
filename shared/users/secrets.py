"""Custom secrets and git provider tokens, each encrypted separately, and the names that secrets may have.

Secrets become environment variables of the commands that an agent runs, besides the variables of the sandbox itself
(wire contract 3.1).
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func
from sqlmodel import Session, col, select

from shared.clock import now
from shared.crypto import Vault
from shared.errors import Invalid, NotFound
from shared.models import ProviderToken, Secret
from shared.sql.locks import lock_user
from shared.sql.pagination import Order, Page, read_page
from shared.users.mcp_config import MASK

# The maximum number of secrets in one start request, and of a user's stored secrets.
MAX_REQUESTED, MAX_SECRETS = 50, 200
MAX_VALUE_BYTES = 64 * 1024
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
# Variables that the processes of the sandbox read.
RESERVED_NAMES = frozenset(
    """
    AGENT_SERVER ENV_LOG_LEVEL LOG_JSON OH_BASH_EVENTS_DIR OH_CONVERSATIONS_PATH OH_ENABLE_VNC OH_SECRET_KEY
    OPENHANDS_AGENT_SERVER_CONFIG_PATH OPENVSCODE_SERVER_ROOT PYTHONUNBUFFERED VSCODE WORKER_1 WORKER_2
    """.split()  # noqa: SIM905 - one name a line would take a page
)
RESERVED_PREFIXES = ("LLM_", "OH_ALLOW_CORS_ORIGINS_", "OH_WEBHOOKS_")
# Variables that shells and program loading depend on. They are case-sensitive: `path` is an ordinary variable.
SHELL_NAMES = frozenset(
    """
    BASH BASHOPTS CDPATH ENV EUID FUNCNEST GLOBIGNORE HOME IFS LOGNAME OLDPWD PATH POSIXLY_CORRECT PPID
    PROMPT_COMMAND PS1 PS2 PS4 PWD PYTHONHOME PYTHONPATH SHELL SHELLOPTS TERM TMPDIR UID USER
    """.split()  # noqa: SIM905 - one name a line would take a page
)
SHELL_PREFIXES = ("BASH_", "LD_")


def check_requested(names: Collection[object]) -> None:
    """Check the number and the names of a start request's secrets.

    Raises:
        ValueError: there are too many names, or a name can't be used.
    """
    if len(names) > MAX_REQUESTED:
        raise ValueError(f"at most {MAX_REQUESTED} secrets, got {len(names)}")
    check_form(names)
    check_free(names)


def check_form(names: Iterable[object]) -> None:
    """Reject names that no variable can have.

    Raises:
        ValueError: a name is malformed. The error does not quote it, because it may be a secret value.
    """
    if not all(_is_name(name) for name in names):
        raise ValueError("a name is letters, digits and _, begins with no digit, and is no longer than 256")


def check_free(names: Iterable[object]) -> None:
    """Reject the names of the sandbox's own variables, in any case, and those that shells depend on.

    Raises:
        ValueError: a name is reserved. The error lists the reserved names.
    """
    reserved = [name for name in map(str, names) if _is_reserved(name)]
    if reserved:
        raise ValueError(f"reserved names: {', '.join(reserved)}")


def is_usable(name: str) -> bool:
    """Whether a secret may have that name."""
    return _is_name(name) and not _is_reserved(name)


def _is_name(name: object) -> bool:
    return isinstance(name, str) and NAME.fullmatch(name) is not None


def _is_reserved(name: str) -> bool:
    belongs_to_sandbox = name.upper() in RESERVED_NAMES or name.upper().startswith(RESERVED_PREFIXES)
    return belongs_to_sandbox or name in SHELL_NAMES or name.startswith(SHELL_PREFIXES)


# --- stored secrets -------------------------------------------------------------------------------------------------


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
    """Add or change the named secrets of a user, who is locked until the transaction ends. Other secrets stay.

    Args:
        entries: `secret` and `description` by name. An empty or masked `secret` keeps the stored value, and
            creates no new secret; an absent `description` keeps the stored one.

    Raises:
        Invalid: the user would have more than `MAX_SECRETS`.
    """
    lock_user(session, user_id)
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
    """Add or change a user's credentials for the named providers. The user is locked until the transaction ends.

    Args:
        entries: `token`, `user_id` and `host` by provider. An empty or masked `token` keeps the stored one;
            an absent `user_id` or `host` does too.
    """
    lock_user(session, user_id)
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


def change_custom_secret(session: Session, user_id: str, name: str, new_name: str, description: str | None) -> None:
    """Change the name and the description of a secret. Its value stays. The user is locked as for `put_custom_secrets`.

    Args:
        new_name: the new name, or the present one.
        description: the new description, or none.

    Raises:
        NotFound: no secret has that name.
        Invalid: another secret has the new name.
    """
    row = _locked_secret(session, user_id, name)
    if new_name != name:
        check_untaken(session, user_id, new_name)
    row.name, row.description = new_name, description
    _touch(session, row)
    session.flush()


def check_untaken(session: Session, user_id: str, name: str) -> None:
    """Check that none of the user's secrets has this name, and keep it free until the transaction ends.

    Raises:
        Invalid: a secret has this name.
    """
    lock_user(session, user_id)
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
    lock_user(session, user_id)
    for row in _tokens(session, user_id):
        session.delete(row)
    session.flush()


def _locked_secret(session: Session, user_id: str, name: str) -> Secret:
    lock_user(session, user_id)
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

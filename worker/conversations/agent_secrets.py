"""The secrets of a conversation's shell: the last check and the form on the wire (wire contract 3.1, 3.3).

The agent gets them as environment variables of the commands that name them. The agent server masks their values in its
records.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from shared.errors import WorkspaceError
from shared.users.secret_names import MAX_VALUE_BYTES, check_requested, is_usable


class UnusableSecret(WorkspaceError):
    """A secret's name is reserved, or the request has too many secrets, or a secret is too large."""

    reason: ClassVar[str] = "unusable_secret"


@dataclass(frozen=True)
class ResolvedSecret:
    """A secret's value and its description."""

    value: str = field(repr=False)
    description: str | None = None


def check_secrets(secrets: Mapping[str, str]) -> None:
    """Check a start request's secrets against the limits and the reserved names.

    Raises:
        UnusableSecret: a secret can't be used. The message quotes no value, and no text that may be a value.
    """
    try:
        check_requested(secrets)
    except ValueError as error:
        raise UnusableSecret(str(error)) from None
    for name, value in secrets.items():
        if len(value.encode()) > MAX_VALUE_BYTES:
            raise UnusableSecret(f"the secret {name!r} is larger than {MAX_VALUE_BYTES} bytes")


def gather_secrets(
    tokens: Mapping[str, str], stored: Mapping[str, ResolvedSecret], requested: Mapping[str, str]
) -> dict[str, ResolvedSecret]:
    """All secrets by name. Of two with one name the request's wins over the stored secret, and that over the token.

    Args:
        tokens: git provider tokens by provider; `github` becomes GITHUB_TOKEN.
        stored: the user's custom secrets. A secret whose name became reserved after it was stored is left out: it
            must not fail every start.
        requested: the start request's secrets, which `check_secrets` has accepted.
    """
    found = dict(_named_token(*entry) for entry in tokens.items())
    found |= {name: secret for name, secret in stored.items() if is_usable(name)}
    return found | {name: ResolvedSecret(value) for name, value in requested.items()}


def on_the_wire(secrets: Mapping[str, ResolvedSecret]) -> dict[str, dict[str, Any]]:
    """The `secrets` field of the agent server's request."""
    return {
        name: {"kind": "StaticSecret", "value": secret.value, "description": secret.description}
        for name, secret in secrets.items()
    }


def _named_token(provider: str, token: str) -> tuple[str, ResolvedSecret]:
    return f"{provider.upper()}_TOKEN", ResolvedSecret(token, f"Token for {provider}")

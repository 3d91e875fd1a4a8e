"""The secrets a conversation's shell is given: last check and form on the wire (wire contract 3.1, 3.3).

They reach the agent as environment variables of the commands that name them; the agent server masks their
values in what it records.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from shared.errors import WorkspaceError
from shared.users.secret_names import MAX_VALUE_BYTES, check_requested, is_usable


class UnusableSecret(WorkspaceError):
    """A secret's name is taken, or there are too many secrets, or one is too large."""

    reason: ClassVar[str] = "unusable_secret"


@dataclass(frozen=True)
class ResolvedSecret:
    """A secret's value and what it is for."""

    value: str = field(repr=False)
    description: str | None = None


def check_secrets(secrets: Mapping[str, str]) -> None:
    """Hold a start request's secrets against the limits and the names that are taken.

    Raises:
        UnusableSecret: one of them can't be used; the message never quotes a value, nor what may be one.
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
    """All of them by name. Where two have one name, the request's wins, then the stored secret.

    Args:
        tokens: git provider tokens by provider; `github` becomes GITHUB_TOKEN.
        stored: the user's custom secrets. One whose name became reserved after it was stored is left out: it
            must not end every start.
        requested: the start request's, which `check_secrets` has let pass.
    """
    given = dict(_named_token(*entry) for entry in tokens.items())
    given |= {name: secret for name, secret in stored.items() if is_usable(name)}
    return given | {name: ResolvedSecret(value) for name, value in requested.items()}


def on_the_wire(secrets: Mapping[str, ResolvedSecret]) -> dict[str, dict[str, Any]]:
    """The `secrets` field of the agent server's request."""
    return {
        name: {"kind": "StaticSecret", "value": secret.value, "description": secret.description}
        for name, secret in secrets.items()
    }


def _named_token(provider: str, token: str) -> tuple[str, ResolvedSecret]:
    return f"{provider.upper()}_TOKEN", ResolvedSecret(token, f"Token for {provider}")

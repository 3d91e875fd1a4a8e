"""The secrets a conversation's shell is given: names, limits and form on the wire (wire contract 3.1, 3.3).

They reach the agent as environment variables of the commands that name them; the agent server masks their
values in what it records.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from shared.errors import WorkspaceError

MOST_SECRETS = 50
LONGEST_NAME = 256
LARGEST_VALUE_BYTES = 64 * 1024
RESERVED_NAMES = frozenset(
    {
        "AGENT_SERVER",
        "ENV_LOG_LEVEL",
        "LOG_JSON",
        "OH_BASH_EVENTS_DIR",
        "OH_CONVERSATIONS_PATH",
        "OH_ENABLE_VNC",
        "OH_SECRET_KEY",
        "OH_WEBHOOKS_0_BASE_URL",
        "OPENHANDS_AGENT_SERVER_CONFIG_PATH",
        "OPENVSCODE_SERVER_ROOT",
        "PYTHONUNBUFFERED",
        "VSCODE",
        "WORKER_1",
        "WORKER_2",
    }
)
RESERVED_PREFIXES = ("LLM_", "OH_ALLOW_CORS_ORIGINS_")


class UnusableSecret(WorkspaceError):
    """A secret's name is taken, or there are too many secrets, or one is too large."""

    reason: ClassVar[str] = "unusable_secret"


@dataclass(frozen=True)
class GivenSecret:
    """A secret's value and what it is for."""

    value: str = field(repr=False)
    description: str | None = None


def check_secrets(secrets: Mapping[str, str]) -> None:
    """Hold a start request's secrets against the limits and the names that are taken.

    Raises:
        UnusableSecret: one of them can't be used; the message names it and never quotes its value.
    """
    if len(secrets) > MOST_SECRETS:
        raise UnusableSecret(f"{len(secrets)} secrets are more than the {MOST_SECRETS} a request may carry")
    for name, value in secrets.items():
        check_name(name)
        if len(value.encode()) > LARGEST_VALUE_BYTES:
            raise UnusableSecret(f"the secret {name!r} is larger than {LARGEST_VALUE_BYTES} bytes")


def check_name(name: str) -> None:
    """Refuse a name that the sandbox itself uses.

    Raises:
        UnusableSecret: the name is taken, empty or too long.
    """
    if not name or len(name) > LONGEST_NAME:
        raise UnusableSecret(f"a secret's name has 1 to {LONGEST_NAME} characters")
    if name in RESERVED_NAMES or name.startswith(RESERVED_PREFIXES):
        raise UnusableSecret(f"the name {name!r} is taken: call the secret something else")


def gather_secrets(
    tokens: Mapping[str, str], stored: Mapping[str, GivenSecret], requested: Mapping[str, str]
) -> dict[str, GivenSecret]:
    """All of them by name. Where two have one name, the request's wins, then the stored secret.

    Args:
        tokens: git provider tokens by provider; `github` becomes GITHUB_TOKEN.
        stored: the user's custom secrets.
        requested: the start request's.
    """
    given = dict(_named_token(*entry) for entry in tokens.items())
    given |= stored
    given |= {name: GivenSecret(value) for name, value in requested.items()}
    for name in given:
        check_name(name)
    return given


def on_the_wire(secrets: Mapping[str, GivenSecret]) -> dict[str, dict[str, Any]]:
    """The `secrets` field of the agent server's request."""
    return {
        name: {"kind": "StaticSecret", "value": secret.value, "description": secret.description}
        for name, secret in secrets.items()
    }


def _named_token(provider: str, token: str) -> tuple[str, GivenSecret]:
    return f"{provider.upper()}_TOKEN", GivenSecret(token, f"Token for {provider}")

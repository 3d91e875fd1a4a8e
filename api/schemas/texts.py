"""Texts that end up in shells, URLs and environments: what they may look like."""

import re

from pydantic import SecretStr

from api.schemas.fields import NAME

MOST_SECRETS = 50

# owner/name, with any number of groups between them.
REPOSITORY = re.compile(r"[A-Za-z0-9_.~][A-Za-z0-9_.~-]*(?:/[A-Za-z0-9_.~][A-Za-z0-9_.~-]*)+")
# git-check-ref-format(1), and no leading dash, which a command would read as an option.
BAD_BRANCH = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|^[-/]|/$|\.$|^@$|(?:^|/)\.|\.lock(?:/|$)")
# What the sandbox's own processes read from their environment (wire contract 3.1).
RESERVED_NAMES = frozenset(
    {
        "AGENT_SERVER",
        "VSCODE",
        "WORKER_1",
        "WORKER_2",
        "OPENVSCODE_SERVER_ROOT",
        "OH_ENABLE_VNC",
        "LOG_JSON",
        "OH_CONVERSATIONS_PATH",
        "OH_BASH_EVENTS_DIR",
        "PYTHONUNBUFFERED",
        "ENV_LOG_LEVEL",
    }
)
RESERVED_PREFIXES = ("LLM_", "OH_WEBHOOKS_", "OH_ALLOW_CORS_ORIGINS_")


def check_repository(name: str) -> str:
    """A repository's path at its provider.

    Raises:
        ValueError: it is not `owner/name`, or holds what no path needs.
    """
    if not REPOSITORY.fullmatch(name) or any(part in {".", ".."} for part in name.split("/")):
        raise ValueError("a repository is owner/name: letters, digits, '.', '_', '~' and '-' between slashes")
    return name


def check_branch(name: str) -> str:
    """A branch's name.

    Raises:
        ValueError: git would not have it.
    """
    if BAD_BRANCH.search(name):
        raise ValueError("not a name that git allows for a branch")
    return name


def check_secret_names(secrets: dict[str, SecretStr]) -> dict[str, SecretStr]:
    """The secrets of one conversation, which become its environment.

    Raises:
        ValueError: too many, or badly named. A name that can't be one is not quoted: it may be a value.
    """
    if len(secrets) > MOST_SECRETS:
        raise ValueError(f"at most {MOST_SECRETS} secrets, got {len(secrets)}")
    if not all(NAME.fullmatch(name) for name in secrets):
        raise ValueError("a secret's name is letters, digits and _, begins with no digit, and is no longer than 256")
    reserved = [name for name in secrets if _is_reserved(name.upper())]
    if reserved:
        raise ValueError(f"reserved names: {', '.join(reserved)}")
    return secrets


def _is_reserved(name: str) -> bool:
    return name in RESERVED_NAMES or name.startswith(RESERVED_PREFIXES)

"""Valid names and sizes of a conversation's secrets (wire contract 3.1). Pure functions.

Secrets become environment variables of the commands that an agent runs, beside the variables of the sandbox itself.
"""

import re
from collections.abc import Collection, Iterable

# The limit of one start request; the limit of a user's stored secrets is in `shared.users.secrets`.
MAX_SECRETS = 50
MAX_VALUE_BYTES = 64 * 1024
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
# Variables that the processes of the sandbox read.
RESERVED_NAMES = frozenset(
    {
        "AGENT_SERVER",
        "ENV_LOG_LEVEL",
        "LOG_JSON",
        "OH_BASH_EVENTS_DIR",
        "OH_CONVERSATIONS_PATH",
        "OH_ENABLE_VNC",
        "OH_SECRET_KEY",
        "OPENHANDS_AGENT_SERVER_CONFIG_PATH",
        "OPENVSCODE_SERVER_ROOT",
        "PYTHONUNBUFFERED",
        "VSCODE",
        "WORKER_1",
        "WORKER_2",
    }
)
RESERVED_PREFIXES = ("LLM_", "OH_ALLOW_CORS_ORIGINS_", "OH_WEBHOOKS_")
# Variables that shells and program loading depend on. They are case-sensitive: `path` is an ordinary variable.
SHELL_NAMES = frozenset(
    {
        "BASH",
        "BASHOPTS",
        "CDPATH",
        "ENV",
        "EUID",
        "FUNCNEST",
        "GLOBIGNORE",
        "HOME",
        "IFS",
        "LOGNAME",
        "OLDPWD",
        "PATH",
        "POSIXLY_CORRECT",
        "PPID",
        "PROMPT_COMMAND",
        "PS1",
        "PS2",
        "PS4",
        "PWD",
        "PYTHONHOME",
        "PYTHONPATH",
        "SHELL",
        "SHELLOPTS",
        "TERM",
        "TMPDIR",
        "UID",
        "USER",
    }
)
SHELL_PREFIXES = ("BASH_", "LD_")


def check_requested(names: Collection[object]) -> None:
    """Check the number and the names of a start request's secrets.

    Raises:
        ValueError: there are too many names, or a name can't be used.
    """
    if len(names) > MAX_SECRETS:
        raise ValueError(f"at most {MAX_SECRETS} secrets, got {len(names)}")
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

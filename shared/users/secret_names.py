"""What a conversation's secrets may be called, and how large they may be (wire contract 3.1). Pure functions.

They become variables of the commands that an agent runs, beside those that the sandbox itself is run with.
"""

import re
from collections.abc import Collection, Iterable

# Of one start request; how many a user may keep is the store's rule.
MAX_SECRETS = 50
MAX_VALUE_BYTES = 64 * 1024
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
# What the sandbox's own processes read from their environment.
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
# What a shell and the programs it starts are found and run by; in these letters only: `path` is a variable like others.
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
    """Hold the names of a start request's secrets against all the rules.

    Raises:
        ValueError: too many, or one that can't be used.
    """
    if len(names) > MAX_SECRETS:
        raise ValueError(f"at most {MAX_SECRETS} secrets, got {len(names)}")
    check_form(names)
    check_free(names)


def check_form(names: Iterable[object]) -> None:
    """Refuse what no variable could be called.

    Raises:
        ValueError: one can't be a name. It is not quoted: it may be a value.
    """
    if not all(_is_name(name) for name in names):
        raise ValueError("a name is letters, digits and _, begins with no digit, and is no longer than 256")


def check_free(names: Iterable[object]) -> None:
    """Refuse the names that are the sandbox's own, in capitals or not, and those that a shell needs.

    Raises:
        ValueError: it says which they are.
    """
    reserved = [name for name in map(str, names) if _is_reserved(name)]
    if reserved:
        raise ValueError(f"reserved names: {', '.join(reserved)}")


def is_usable(name: str) -> bool:
    """Whether a secret may be called so."""
    return _is_name(name) and not _is_reserved(name)


def _is_name(name: object) -> bool:
    return isinstance(name, str) and NAME.fullmatch(name) is not None


def _is_reserved(name: str) -> bool:
    is_ours = name.upper() in RESERVED_NAMES or name.upper().startswith(RESERVED_PREFIXES)
    return is_ours or name in SHELL_NAMES or name.startswith(SHELL_PREFIXES)

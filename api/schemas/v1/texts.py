"""Texts that end up in shells, URLs and environments: what they may look like."""

import re
from typing import Any

from shared.users.secret_names import check_requested

# owner/name, with any number of groups between them.
REPOSITORY = re.compile(r"[A-Za-z0-9_.~][A-Za-z0-9_.~-]*(?:/[A-Za-z0-9_.~][A-Za-z0-9_.~-]*)+")
# git-check-ref-format(1), and no leading dash, which a command would read as an option.
BAD_BRANCH = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|^[-/]|/$|\.$|^@$|(?:^|/)\.|\.lock(?:/|$)")


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


def check_secret_names(secrets: Any) -> Any:
    """The names of one conversation's secrets, before their values are looked at.

    Raises:
        ValueError: too many, or badly named. A name that can't be one is not quoted: it may be a value.
    """
    if isinstance(secrets, dict):
        check_requested(secrets)
    return secrets

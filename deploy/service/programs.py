"""Third-party programs that a process of the service becomes, such as HAProxy and Squid."""

import os
import pwd
from collections.abc import Sequence
from typing import NoReturn

# /usr/local comes last: Debian's programs are the tested ones. Official Python images have their Python only there.
PATH = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin"
# The only variables that these programs need; the service's own environment contains its secrets. In the C locale,
# Squid's own programs accept any bytes of a request as text.
ENVIRONMENT = {"PATH": PATH, "LC_ALL": "C"}


def become(command: Sequence[str]) -> NoReturn:
    """Replace this process by a program, without this process's environment."""
    os.chdir("/")  # the program's user may not enter this folder
    os.execvpe(command[0], list(command), ENVIRONMENT)  # noqa: S606 - no shell is wanted


def as_user(name: str) -> list[str]:
    """The beginning of a command that runs without root's rights, as this user; empty if this process is not root's.

    Raises:
        ValueError: there is no such user.
    """
    if os.geteuid() != 0:
        return []
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise ValueError(f"the user {name} does not exist: create it with deploy/users") from None
    identity = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--no-new-privs"]
    return ["setpriv", "--pdeathsig=TERM", *identity, "--"]


def in_memory(name: str, text: str) -> int:
    """The descriptor of a file that exists in memory only."""
    file = os.memfd_create(name, 0)
    os.write(file, text.encode())
    os.lseek(file, 0, os.SEEK_SET)
    return file

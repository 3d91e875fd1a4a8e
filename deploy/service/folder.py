"""The var directory: its lock, by which a second service prints which one is running, and the length of its path."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from deploy.service.configuration import control_socket
from deploy.service.errors import ServiceError
from shared.clock import now
from shared.queue.embedded_broker import MAX_SOCKET_PATH_LENGTH
from shared.settings import Settings

RUNNING = """\
The service of this folder is already running; nothing was changed.
  {service}
Run `make restart` to apply new code and settings. To stop it, press Ctrl-C in its terminal, or send it SIGTERM.
A second service needs its own folder, ports and network: set AW_VAR_DIR,
AW_PORT, AW_CLIENT_PORT, AW_DOOR_PORT, AW_FLOWER_PORT and AW_SANDBOX_ADDRESSES."""


def refuse_long_path(settings: Settings) -> None:
    """Check that the supervisor's socket, the one with the longest path, can be created in the var directory.

    Raises:
        ServiceError: its path is too long.
    """
    path = f"{control_socket(settings.var_dir)}.{os.getpid()}"  # its first name, which the supervisor then changes
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_LENGTH:
        text = f"{path} is too long for a socket: set AW_VAR_DIR to a shorter path"
        raise ServiceError(text, "the-path-is-too-long-for-a-socket")


@contextmanager
def hold_folder(settings: Settings) -> Iterator[None]:
    """Lock the var directory until the block or this process ends.

    Raises:
        ServiceError: another service has the lock; the text names its address.
    """
    for folder in (settings.var_dir, settings.var_dir / "run"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (settings.var_dir / "run" / "service.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            text = RUNNING.format(service=file.read().strip() or "it is starting")
            raise ServiceError(text, "the-service-of-this-folder-is-running-already") from None
        _describe(file, settings)
        yield


def _describe(file: TextIO, settings: Settings) -> None:
    file.truncate(0)
    file.write(f"{settings.public_url}, process {os.getpid()}, started {now():%Y-%m-%d %H:%M} UTC\n")
    file.flush()

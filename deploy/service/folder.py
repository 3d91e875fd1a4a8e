"""The lock of the var directory: a second service prints which one is running, and changes nothing."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from deploy.service.errors import ServiceError
from shared.clock import now
from shared.settings import Settings

RUNNING = """\
The service of this folder is already running; nothing was changed.
  {service}
Run `make restart` to apply new code and settings. To stop it, press Ctrl-C in its terminal, or send it SIGTERM.
A second service needs its own folder, ports and network: set AW_VAR_DIR,
AW_PORT, AW_CLIENT_PORT, AW_DOOR_PORT, AW_FLOWER_PORT and AW_SANDBOX_ADDRESSES."""


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

"""One service in a folder: a second one says what runs there, and changes nothing."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from deploy.service.errors import ServiceError
from shared.clock import now
from shared.settings import Settings

HELD = """\
The service of this folder runs already; nothing was changed.
  {service}
`make restart` takes over new code and settings. To stop it, press Ctrl-C where it was started, or send it SIGTERM.
A second service needs a folder of its own: set AW_VAR_DIR, AW_PORT and AW_FLOWER_PORT for it."""


@contextmanager
def hold_folder(settings: Settings) -> Iterator[None]:
    """Be the only service in this var directory, until the block or this process ends.

    Raises:
        ServiceError: another one is; the text says where it listens.
    """
    for folder in (settings.var_dir, settings.var_dir / "run"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (settings.var_dir / "run" / "service.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ServiceError(HELD.format(service=file.read().strip() or "it is just being started")) from None
        _describe(file, settings)
        yield


def _describe(file: TextIO, settings: Settings) -> None:
    file.truncate(0)
    file.write(f"{settings.public_url}, process {os.getpid()}, started {now():%Y-%m-%d %H:%M} UTC\n")
    file.flush()

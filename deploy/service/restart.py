"""`python -m deploy.service.restart [PROCESS...]`: restart the running service's processes one by one.

This applies new code or settings without a failed request: an API process closes its connections gracefully while new
connections wait for its successor, and a worker finishes its running jobs.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xmlrpc.client import Fault, ServerProxy

from rich.console import Console
from supervisor.xmlrpc import SupervisorTransport  # type: ignore[import-untyped]

from deploy.service.configuration import control_socket
from deploy.service.errors import ServiceError
from deploy.service.owners import hand_over, is_handed_over
from shared.settings import Settings

ROLLING = ("worker", "web")


def main(names: Sequence[str]) -> None:
    """Restart the named processes, such as `web` or `web.1`; without names, every worker and API process.

    Raises:
        ServiceError: no service runs, or it has no process of that name.
    """
    console, settings = Console(highlight=False), Settings()
    if is_handed_over(settings):
        hand_over(settings)  # what a migration has added
    with _supervisor(control_socket(settings.var_dir)) as supervisor:
        for group, process in _choose(supervisor.getAllProcessInfo(), names or ROLLING):
            began = time.monotonic()
            with console.status(f"restarting {process}"):
                _restart(supervisor, f"{group}:{process}")
            console.print(f"{process} restarted in {time.monotonic() - began:.1f} s")


def _choose(processes: Sequence[dict[str, Any]], names: Sequence[str]) -> list[tuple[str, str]]:
    chosen = [
        (info["group"], info["name"]) for name in names for info in processes if name in (info["group"], info["name"])
    ]
    if not chosen:
        raise ServiceError(f"no running process is named {' or '.join(names)}")
    return chosen


def _restart(supervisor: Any, name: str) -> None:
    try:
        supervisor.stopProcess(name, True)  # noqa: FBT003 - wait
    except Fault as fault:
        if "NOT_RUNNING" not in fault.faultString:
            raise
    supervisor.startProcess(name, True)  # noqa: FBT003 - wait until it has run for `startsecs`


@contextmanager
def _supervisor(socket: Path) -> Iterator[Any]:
    if not socket.exists():
        raise ServiceError(f"no service runs here: {socket} does not exist")
    transport = SupervisorTransport(None, None, f"unix://{socket}")
    try:
        yield ServerProxy("http://127.0.0.1", transport=transport).supervisor
    except (ConnectionError, FileNotFoundError) as error:
        raise ServiceError(f"no service responds at {socket}: {error}") from None
    finally:
        transport.close()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ServiceError as error:
        sys.exit(str(error))
    except Fault as fault:
        sys.exit(f"not restarted: {fault.faultString}; see the service's output")

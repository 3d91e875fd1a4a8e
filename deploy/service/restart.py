"""`python -m deploy.service.restart [PROCESS...]`: restart the running service's processes one by one.

This applies new code or settings without a failed request: an API process closes its connections gracefully while new
connections wait for its successor, and a worker finishes its running jobs. The next process is stopped when the last
one works again: until then, the others handle its requests and its jobs.
"""

import json
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from xmlrpc.client import Fault, ServerProxy

from pydantic import ValidationError
from rich.console import Console
from supervisor.xmlrpc import SupervisorTransport  # type: ignore[import-untyped]

from deploy.service.configuration import control_socket
from deploy.service.errors import ServiceError
from deploy.service.health import local_url
from deploy.service.owners import assign_files, has_assigned_files
from deploy.service.ports import is_open
from deploy.service.processes import find_procfile, list_names
from shared.backup.keys import read_vault
from shared.cli.exits import error_text
from shared.cli.output import NAME
from shared.errors import Invalid
from shared.settings import Settings
from worker.settings import WorkerSettings

WORKER, API = "worker", "web"
ROLLING = (WORKER, API)
# The API's processes share their sockets: another one may respond, and only the uptime distinguishes them.
READY_SECONDS, PAUSE_SECONDS, RESPONSE_SECONDS = 120.0, 0.2, 5.0


def main(names: Sequence[str]) -> None:
    """Restart the named processes, such as `web` or `web.1`; without names, every worker and API process.

    Raises:
        ServiceError: no service runs, it has no process of a name, it does not listen on the API's addresses, or a
            process does not work after its restart. The processes after it were not restarted, and keep running.
        ValidationError: a setting is wrong. No process was stopped.
        Invalid: a secret key is malformed, or cannot be read. No process was stopped.
    """
    console, settings = Console(highlight=False), Settings()
    # A stopped process would not start with a wrong setting.
    WorkerSettings()
    if settings.secret_keys or settings.secret_key_file.exists():  # otherwise the running service may have its own
        read_vault(settings)
    if has_assigned_files(settings):
        assign_files(settings)  # what a migration has added
    with _supervisor(control_socket(settings.var_dir)) as supervisor:
        chosen = _choose(supervisor.getAllProcessInfo(), names or ROLLING)
        if any(group == API for group, _ in chosen):
            _require_open_sockets(settings)
        for group, process in chosen:
            began = time.monotonic()
            with console.status(f"restarting {process}"):
                works = settings.readiness_file(process)
                _restart(supervisor, f"{group}:{process}", works)
                if group == API:
                    _await_response(f"{local_url(settings)}/server_info", process, began)
                if group == WORKER:
                    _await_work(works, process)
            console.print(f"{process} restarted in {time.monotonic() - began:.1f} s")


def _choose(processes: Sequence[dict[str, Any]], names: Sequence[str]) -> list[tuple[str, str]]:
    _require_known(processes, names)
    chosen = [
        (info["group"], info["name"]) for name in names for info in processes if name in (info["group"], info["name"])
    ]
    if not chosen:
        raise ServiceError(f"no running process is named {' or '.join(names)}")
    return chosen


def _require_known(processes: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    """Check the names before a process is stopped. A process of the Procfile may be one that does not run here."""
    of_service = list_names(find_procfile())
    known = {*of_service, *(info["name"] for info in processes)}
    if unknown := [name for name in names if name not in known]:
        text = f"no process is named {' or '.join(unknown)}; the processes are {', '.join(of_service)}"
        raise ServiceError(f"{text}; nothing was restarted")


def _require_open_sockets(settings: Settings) -> None:
    """Check that the API's addresses are open before a process is stopped: a restart does not open them."""
    advice = "after a change of AW_HOST, AW_PORT or AW_CLIENT_PORT, stop the service and start it again"
    if not is_open(settings.host, settings.port):
        text = f"the service does not listen on {settings.host}, port {settings.port}: {advice}; nothing was restarted"
        raise ServiceError(text)
    # Only a warning: the service may have been started with another port, or 0, in its environment, and keeps it.
    if settings.client_port and not is_open(settings.host, settings.client_port):
        print(
            f"warning: the service does not listen on the client port {settings.client_port}: {advice}", file=sys.stderr
        )


def _restart(supervisor: Any, name: str, works: Path) -> None:
    try:
        supervisor.stopProcess(name, True)  # noqa: FBT003 - wait
    except Fault as fault:
        if "NOT_RUNNING" not in fault.faultString:
            raise
    works.unlink(missing_ok=True)
    supervisor.startProcess(name, True)  # noqa: FBT003 - wait until it has run for `startsecs`


def _await_response(url: str, process: str, began: float) -> None:
    """Wait until a process that was started after `began` responds: until then, the next one must not be stopped."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() - began < READY_SECONDS:
        with suppress(OSError, ValueError), opener.open(url, timeout=RESPONSE_SECONDS) as response:
            if float(json.load(response)["uptime"]) < time.monotonic() - began:
                return
        time.sleep(PAUSE_SECONDS)
    raise ServiceError(f"{process} does not respond {READY_SECONDS:.0f} s after its restart; see the service's output")


def _await_work(works: Path, process: str) -> None:
    """Wait until a worker has sent its node's heartbeat: a node whose workers are all silent is lost."""
    began = time.monotonic()
    while time.monotonic() - began < READY_SECONDS:
        if works.exists():
            return
        time.sleep(PAUSE_SECONDS)
    raise ServiceError(f"{process} does not work {READY_SECONDS:.0f} s after its restart; see the service's output")


@contextmanager
def _supervisor(socket: Path) -> Iterator[Any]:
    if not socket.exists():
        raise ServiceError(f"no service runs here: {socket} does not exist", "make-restart-finds-no-service")
    transport = SupervisorTransport(None, None, f"unix://{socket}")
    try:
        yield ServerProxy("http://127.0.0.1", transport=transport).supervisor
    except (ConnectionError, FileNotFoundError) as error:
        raise ServiceError(f"no service responds at {socket}: {error}", "make-restart-finds-no-service") from None
    finally:
        transport.close()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ServiceError as error:
        sys.exit(str(error))
    except (ValidationError, Invalid) as error:
        sys.exit(f"wrong settings, nothing was restarted: {error_text(error, NAME)}")
    except Fault as fault:
        sys.exit(f"not restarted: {fault.faultString}; see the service's output")
    except OSError as error:  # such as another user's service
        sys.exit(f"the restart did not finish: {error_text(error, NAME)}")

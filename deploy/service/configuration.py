"""The supervisor's configuration, written from the Procfile."""

import os
import shlex
import sys
from collections.abc import Collection, Sequence
from configparser import RawConfigParser
from pathlib import Path

from deploy.service.owners import API, OWNERS, engine_socket
from deploy.service.processes import BROKER, DOOR, EGRESS_PROXY, ENGINE_FILTER, WEB, WORKER, Process
from deploy.service.sockets import MIN_DESCRIPTOR

LAUNCH = shlex.quote(str(Path(__file__).with_name("launch")))

# The start order, and in reverse the stop order: no process is left without the broker.
ORDER = (BROKER, ENGINE_FILTER, DOOR, EGRESS_PROXY, WORKER, "flower", WEB)
# Workers finish their running jobs, and the API closes its connections gracefully.
STOP_SECONDS = {WORKER: 30, WEB: 26}
COLOURS = (36, 33, 32, 35, 34, 31)


def write_configuration(processes: Sequence[Process], var: Path, *, own_users: bool = False) -> Path:
    """Write `run/supervisord.conf` in the var directory, and create its `log` folder.

    Args:
        own_users: the processes run as users of their own (`deploy.service.owners`).
    """
    for folder in (var, var / "run", var / "log"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    parser = RawConfigParser()
    own = {"supervisord": _supervisor(var)} | _control(var)
    programs = _programs(processes)
    if own_users:
        for process in processes:
            programs[f"program:{process.name}"] |= _identity(process.name, var)
    names = {process.name for process in processes}
    ready = {"program:ready": _ready_message(names)} if WEB in names else {}
    parser.read_dict(own | programs | ready)
    path = var / "run" / "supervisord.conf"
    with path.open("w") as file:
        parser.write(file)
    return path


def control_socket(var: Path) -> Path:
    """The supervisor's control socket, for its own user only."""
    return var.absolute() / "run" / "supervisor.sock"


def _control(var: Path) -> dict[str, dict[str, object]]:
    interface = "supervisor.rpcinterface:make_main_rpcinterface"
    return {
        "unix_http_server": {"file": control_socket(var), "chmod": "0600"},
        "rpcinterface:supervisor": {"supervisor.rpcinterface_factory": interface},
    }


def _supervisor(var: Path) -> dict[str, object]:
    files = {"logfile": var / "log" / "supervisord.log", "pidfile": var / "run" / "supervisord.pid"}
    user = {"user": "root"} if os.geteuid() == 0 else {}  # without it, supervisord prints a warning
    # File descriptors from `minfds` on are the API's sockets, and are inherited.
    return {"nodaemon": "true", "nocleanup": "true", "minfds": MIN_DESCRIPTOR, **files, **user}


def _programs(processes: Sequence[Process]) -> dict[str, dict[str, object]]:
    width = max(len(process.name) for process in processes) + len(".1")
    return {
        f"program:{process.name}": _program(process, width, COLOURS[number % len(COLOURS)])
        for number, process in enumerate(processes)
    }


def _program(process: Process, width: int, colour: int) -> dict[str, object]:
    return {
        "command": f"{LAUNCH} {process.name} %(process_num)d {width} {colour if _is_colourful() else 0}",
        "process_name": "%(program_name)s.%(process_num)d",
        "numprocs": process.count,
        "numprocs_start": 1,
        "priority": ORDER.index(process.name) if process.name in ORDER else len(ORDER),
        "autorestart": "true",
        # A process that dies sooner than this is restarted after 1, 2, 3… seconds.
        "startsecs": 3,
        "startretries": 1_000_000,
        "stopwaitsecs": STOP_SECONDS.get(process.name, 10),
        "stopasgroup": "true",
        "killasgroup": "true",
        **_output(),
    }


def _identity(name: str, var: Path) -> dict[str, object]:
    """The user of a process, and the engine's address for a worker. The engine filter keeps running as root."""
    if name not in OWNERS:
        return {}
    variables = {"RUN_AS": OWNERS[name]}
    if OWNERS[name] != API:
        variables["AW_DOCKER_HOST"] = f"unix://{engine_socket(var)}"
    # The processes share the files that they create with their group, and with no other user.
    return {"umask": "007", "environment": ",".join(f'{key}="{value}"' for key, value in variables.items())}


def _ready_message(names: Collection[str]) -> dict[str, object]:
    single_run = {"autorestart": "false", "startsecs": 0, "startretries": 0}
    python = shlex.quote(sys.executable)
    command = f"{python} -m deploy.service.print_address{f' {WORKER}' if WORKER in names else ''}"
    return {"command": command, **single_run, **_output()}


def _output() -> dict[str, object]:
    return {"redirect_stderr": "true", "stdout_logfile": "/dev/fd/1", "stdout_logfile_maxbytes": 0}


def _is_colourful() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")

"""Commands that become a process of the service. They start it by name: `shared` imports neither API nor worker."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NoReturn

import typer

server, worker, everything = (typer.Typer(add_completion=False) for _ in range(3))


@server.command("server")
def run_server() -> None:
    """Run one API process. Processes of one machine share its ports, so any number may run."""
    _become("api")


@worker.command("worker")
def run_worker() -> None:
    """Run a worker beside the Docker Engine of AW_DOCKER_HOST. Its node needs a door, too (`all` starts both)."""
    _become("worker")


@everything.command("all")
def run_all(
    counts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROCESS=NUMBER]...", help="Numbers of processes, such as web=2 worker=0. Default: 1."),
    ] = None,
) -> None:
    """Prepare this machine's installation in the current folder, and run all processes of the service."""
    run_processes(counts or ())


def run_processes(counts: tuple[str, ...] | list[str]) -> NoReturn:
    """Become the supervisor of this machine's processes."""
    script = _folder_of("deploy") / "service" / "run"
    os.execv(script, [str(script), sys.executable, *counts])  # noqa: S606 - no shell is wanted


def _become(module: str) -> NoReturn:
    # -P: a folder of the module's name in the current folder must not be run in place of the service's.
    os.execv(sys.executable, [sys.executable, "-P", "-m", module])  # noqa: S606


def _folder_of(package: str) -> Path:
    found = find_spec(package)
    [folder, *_] = found.submodule_search_locations if found and found.submodule_search_locations else [""]
    return Path(folder)

"""The service under its supervisor, as `make run` starts it, with its own broker and database."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.services import http, processes
from tests.services.deployment_settings import Engine, engine_settings
from tests.services.directories import REPOSITORY, short_directory
from tests.services.ports import Port
from tests.waiting import eventually


@dataclass
class SupervisedService:
    """A running supervisor; `environment` is that of its processes and of commands for it."""

    process: subprocess.Popen[bytes]
    url: str
    var: Path
    environment: dict[str, str]
    log: Path

    @property
    def pid(self) -> int:
        """The supervisor's pid."""
        return self.process.pid

    @property
    def key(self) -> str:
        """The first user's key."""
        return (self.var / "admin.key").read_text().strip()

    def client(self) -> httpx.Client:
        """The first user's client."""
        return http.open_client(self.url, headers={"Authorization": f"Bearer {self.key}"}, timeout=30)

    def spawned(self, process: str) -> int:
        """The number of times that a process was started."""
        return len(re.findall(rf"spawned: '{re.escape(process)}'", self.log.read_text()))

    def is_ready(self) -> bool:
        """Whether the API responds, and the first user's key exists."""
        try:
            return http.get(f"{self.url}/ready", timeout=5).status_code == 200 and (self.var / "admin.key").exists()
        except httpx.TransportError:
            return False


@contextmanager
def running_supervised(
    engine: Engine,
    *numbers: str,
    repository: Path = REPOSITORY,
    var: Path | None = None,
    launcher: Sequence[str] = (),
    **settings: str,
) -> Iterator[SupervisedService]:
    """Run the service beside an engine, and wait until it is ready.

    Args:
        engine: the engine of its sandboxes.
        numbers: the number of processes of each kind; by default two API processes and two workers.
        repository: the repository of the code.
        var: a var directory to keep.
        launcher: the prefix of the command.
        settings: environment variables in addition to the addresses of the engine.
    """
    # SQLite's commits wait for the disk, which other tests' images keep busy, so writers would wait for too long.
    place = nullcontext(var) if var else short_directory("supervised", in_memory=True)
    with place as directory, Port() as port, Port() as client_port, Port() as door_port:
        own = {
            "AW_VAR_DIR": str(directory),
            "AW_PORT": str(port),
            "AW_CLIENT_PORT": str(client_port),
            "AW_DOOR_PORT": str(door_port),
            "AW_LOG_FORMAT": "json",
        }
        environment = os.environ | own | engine_settings(engine) | settings
        log = directory / "output"
        command = [*launcher, sys.executable, "-m", "deploy.service", *(numbers or ("web=2", "worker=2", "flower=0"))]
        service = processes.start(["env", f"--chdir={repository}", *command], log, environment=environment)
        found = SupervisedService(service, f"http://127.0.0.1:{port}", directory, environment, log)
        try:
            eventually(found.is_ready, deadline_seconds=120, interval_seconds=0.2)
            yield found
        finally:
            try:
                _end(service)
            finally:
                sys.stdout.write(found.log.read_text())  # shown with a failure


def _end(service: subprocess.Popen[bytes]) -> None:
    service.send_signal(signal.SIGTERM)
    try:
        service.wait(90)
    except subprocess.TimeoutExpired:
        service.kill()
        service.wait()
        raise

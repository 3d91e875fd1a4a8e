"""Deployments: the service's processes with the servers of a test, which starts, stops and kills them.

A deployment needs a store, a broker, and at least one engine. Its processes write their logs to its directory.
"""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from shared.crypto import Vault, new_api_key
from shared.db.database import Database
from shared.models import Installation, SandboxSpec
from shared.sandboxes import specs
from tests.factories import SECRET_KEY, make_user
from tests.services import http
from tests.services.client import Client
from tests.services.deployment_settings import SHORTENED, Engine, engine_settings
from tests.services.directories import short_directory
from tests.services.door import start_door
from tests.services.foreign_locks import suspend_between_writes
from tests.services.forks import Fork
from tests.services.ports import Port
from tests.waiting import eventually

# The prefixes of process names.
API, DOOR = "api", "door-"
Process = Fork | subprocess.Popen[bytes]
Start = Callable[[Sequence[str], Mapping[str, str], Path], Process]


class Deployment:
    """One installation of the service. `environment` has the settings of its processes; change them before a start.

    Args:
        directory: the directory of the logs, and the var directory.
        engines: one engine, or several by the names of their nodes.
        database_url: the URL of a migrated database.
        broker_url: Kombu's URL of the broker.
        installation: the label of its containers; each installation on an engine and a broker needs its own.
        settings: environment variables of every process, in addition to the addresses of the servers.
        launcher: a module that prepares the process, and runs the module that its first argument names.
        start: how to start a process; `processes.start_module` starts a new interpreter, which takes longer.
    """

    def __init__(
        self,
        directory: Path,
        engines: Engine | Mapping[str, Engine],
        *,
        database_url: str,
        broker_url: str,
        installation: str = "test-service",
        settings: Mapping[str, str] = SHORTENED,
        launcher: str | None = None,
        start: Start = Fork,
    ) -> None:
        self.installation = installation
        self.engines = dict(engines) if isinstance(engines, Mapping) else {f"node-{installation}": engines}
        self._ports = [Port() for _ in range(3)]
        self.port, self.client_port, self.door_port = (port.number for port in self._ports)
        self.url = f"http://127.0.0.1:{self.port}"
        self.database = Database(database_url)
        self.vault = Vault([SECRET_KEY])
        self._directory = directory
        self._launcher = launcher
        self._start_process = start
        self._processes: dict[str, Process] = {}
        self.environment = {
            "AW_VAR_DIR": str(directory),
            "AW_DATABASE_URL": database_url,
            "AW_REDIS_URL": broker_url,
            "AW_SECRET_KEYS": SECRET_KEY,
            "AW_PORT": str(self.port),
            "AW_CLIENT_PORT": str(self.client_port),
            "AW_DOOR_PORT": str(self.door_port),
            "AW_LOG_FORMAT": "json",
            **settings,
            **self._settings_of_node(next(iter(self.engines))),
        }

    # --- the store ----------------------------------------------------------------------------------------------------

    def prepare(self, *images: str) -> None:
        """Create specs of these images, the first of which is the default, and the row of the installation."""
        with self.database.transaction() as session:
            session.add(Installation(id=self.installation))
            for image in images:
                specs.add_spec(session, SandboxSpec(id=image, position=0))

    def add_spec(self, image: str, env: dict[str, str]) -> None:
        """Add a spec with this environment."""
        with self.database.transaction() as session:
            specs.add_spec(session, SandboxSpec(id=image, position=0, env=env))

    def make_default(self, image: str) -> None:
        """Make a spec the default."""
        with self.database.transaction() as session:
            spec = specs.get_spec(session, image)
            spec.position = -1
            session.add(spec)

    def make_metrics_key(self) -> str:
        """Create the key of the metrics, as `migrate` does in other installations."""
        key = new_api_key()
        (self._directory / "metrics.key").write_text(key)
        return key

    def user(self, name: str) -> Client:
        """Create a user with a key; return the user's client."""
        return Client(self.url, make_user(self.database, name))

    # --- processes ----------------------------------------------------------------------------------------------------

    def start(self, *, apis: int = 1, workers: int = 1) -> None:
        """Start API processes, and workers beside each engine; wait until the API is ready.

        API processes are named `api`, `api-2`, …; workers `worker`, `worker-2`, …, or by their nodes if several.
        """
        for name in _numbered(API, apis):
            self.start_api(name)
        for node in self.engines:
            for name in _numbered(node if len(self.engines) > 1 else "worker", workers):
                self.start_worker(name, node)

    def start_api(self, name: str = API, **environment: str) -> None:
        """Start an API process and wait until the service is ready. Several processes share the port."""
        self._start("api", name, environment)
        eventually(lambda: self._is_ready(name), deadline_seconds=120)

    def start_worker(self, name: str = "worker", node: str | None = None, **environment: str) -> None:
        """Start a worker beside the engine of a node, by default the first, with additional variables.

        The first worker of a node also starts the node's door.
        """
        self.start_door(node or next(iter(self.engines)), **environment)
        self._start("worker", name, (self._settings_of_node(node) if node else {}) | environment)

    def start_door(self, node: str, **environment: str) -> None:
        """Start a node's door, named `door-` and the node's name, unless it runs."""
        if (name := f"{DOOR}{node}") not in self._processes:
            own = self.environment | self._settings_of_node(node) | environment
            self._processes[name] = start_door(own, self._directory / f"{name}.log")

    def adopt(self, name: str, process: Process) -> None:
        """Add a process that was started elsewhere, so that it ends with the others."""
        self._processes[name] = process

    def kill(self, name: str) -> None:
        """Kill a process (`kill -9`)."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def interrupt_process(self, name: str) -> None:
        """Ask a process to shut down, and do not wait for its end."""
        self._processes[name].send_signal(signal.SIGTERM)

    def pid(self, name: str) -> int:
        """The pid of a process."""
        return self._processes[name].pid

    def exit_code(self, name: str) -> int | None:
        """The exit code of a process; None while it runs."""
        return self._processes[name].poll()

    def has_ended(self, name: str) -> bool:
        """Whether a process has ended by itself."""
        process = self._processes.get(name)
        return process is not None and process.poll() is not None

    def freeze(self, name: str) -> None:
        """Suspend a process (`kill -STOP`) until `wake`."""
        self._processes[name].send_signal(signal.SIGSTOP)

    def freeze_between_writes(self, name: str) -> None:
        """Suspend a process while it holds no lock of the database, for which others would wait."""
        suspend_between_writes(self.database, lambda: self.freeze(name), lambda: self.wake(name))

    def wake(self, name: str) -> None:
        """Continue a suspended process."""
        self._processes[name].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Shut down every process, and release the ports.

        Doors stop after the workers, which finish their jobs through them: without its door, a worker would wait for
        each agent server until it is killed. The API ends last, because it drains the doors' idle connections.
        """
        doors, apis = self._named(DOOR), self._named(API)
        others = [process for process in self._processes.values() if process not in (*doors, *apis)]
        _terminate([*others, *apis])
        _await_end(others)
        _terminate(doors)
        _await_end([*doors, *apis])
        self._processes.clear()
        self.database.close()
        for port in self._ports:
            port.release()

    def log(self) -> str:
        """The output of all processes."""
        return "".join(path.read_text() for path in sorted(self._directory.glob("*.log")))

    def _named(self, prefix: str) -> list[Process]:
        return [process for name, process in self._processes.items() if name.startswith(prefix)]

    def _settings_of_node(self, node: str) -> dict[str, str]:
        return {"AW_NODE": node, **engine_settings(self.engines[node])}

    def _start(self, module: str, name: str, environment: dict[str, str]) -> None:
        command = [self._launcher, module] if self._launcher else [module]
        log = self._directory / f"{name}.log"
        self._processes[name] = self._start_process(command, self.environment | environment, log)

    def _is_ready(self, name: str) -> bool:
        if self._processes[name].poll() is not None:
            raise RuntimeError(f"the API did not start: {self.log()[-2000:]}")
        try:
            return http.get(f"{self.url}/ready", timeout=5).status_code == 200
        except httpx.TransportError:
            return False


@contextmanager
def deployed(
    engines: Engine | Mapping[str, Engine], *images: str, prints_log: bool = True, **options: Any
) -> Iterator[Deployment]:
    """Create a deployment with specs of these images, without starting it; stop its processes after the block.

    Args:
        engines: the engines of `Deployment`.
        images: the images, the first of which is the default.
        prints_log: print the processes' logs at the end, because pytest shows them with a failure.
        options: the other arguments of `Deployment`.
    """
    with short_directory("service") as directory:
        deployment = Deployment(directory, engines, **options)
        try:
            if images:
                deployment.prepare(*images)
            yield deployment
        finally:
            deployment.stop()
            if prints_log:
                sys.stdout.write(deployment.log())


def _terminate(processes: Sequence[Process]) -> None:
    for process in processes:
        process.send_signal(signal.SIGCONT)  # a suspended process would not receive the next signal
        process.send_signal(signal.SIGTERM)


def _await_end(processes: Sequence[Process]) -> None:
    for process in processes:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _numbered(name: str, count: int) -> list[str]:
    return [name if number == 1 else f"{name}-{number}" for number in range(1, count + 1)]

"""Deployments: the service's processes with the tests' own servers, which a test starts, stops and kills.

A deployment needs a store, a broker, and at least one engine. Its processes write their logs to its directory.
"""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx

from shared.crypto import Vault, new_api_key
from shared.db.database import Database
from shared.models import Installation, SandboxSpec
from shared.sandboxes import specs
from tests.factories import SECRET_KEY, make_person
from tests.services import http
from tests.services.client import Client
from tests.services.deployment_settings import SHORTENED
from tests.services.directories import short_directory
from tests.services.door import start_door
from tests.services.forks import Fork
from tests.services.ports import Port
from tests.waiting import eventually

# The beginning of the names of doors.
DOOR = "door-"
Process = Fork | subprocess.Popen[bytes]
Start = Callable[[Sequence[str], Mapping[str, str], Path], Process]


class Engine(Protocol):
    """A Docker Engine, as a deployment's processes are told of it."""

    @property
    def host(self) -> str:
        """Its socket's URL."""

    @property
    def gateway(self) -> str:
        """The address at which its containers reach this machine."""

    @property
    def address(self) -> str:
        """The address of this machine on which the door beside it listens; no other engine's door listens there."""

    @property
    def network(self) -> str:
        """The network of its containers, as a CIDR; empty: docker0's."""


class Deployment:
    """One installation of the service. Settings of its processes are in `environment`: change them before a start.

    Args:
        directory: of its logs and its var directory.
        engines: one, or several by the names of their nodes.
        database_url: of a migrated database.
        broker_url: as Kombu writes it.
        installation: the label of its containers; several on one engine and one broker need one each.
        settings: environment variables of every process, beside those that connect it with the parts.
        launcher: a module that is given the name of the one to run, and prepares the process for it.
        start: how a process is started; `processes.start_module` starts it as people do, which takes longer.
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
        """Make specs for these images, the first the default, and an installation whose label tests may sweep."""
        with self.database.transaction() as session:
            session.add(Installation(id=self.installation))
            for image in images:
                specs.add_spec(session, SandboxSpec(id=image, position=0))

    def add_spec(self, image: str, env: dict[str, str]) -> None:
        """Another spec, with this environment."""
        with self.database.transaction() as session:
            specs.add_spec(session, SandboxSpec(id=image, position=0, env=env))

    def make_default(self, image: str) -> None:
        """Make new sandboxes from this spec."""
        with self.database.transaction() as session:
            spec = specs.get_spec(session, image)
            spec.position = -1
            session.add(spec)

    def make_metrics_key(self) -> str:
        """The key of the metrics, which `migrate` makes elsewhere."""
        key = new_api_key()
        (self._directory / "metrics.key").write_text(key)
        return key

    def user(self, name: str) -> Client:
        """The client of a new user with a key."""
        return Client(self.url, make_person(self.database, name))

    # --- processes ----------------------------------------------------------------------------------------------------

    def start(self, *, apis: int = 1, workers: int = 1) -> None:
        """Start so many API processes, and so many workers beside each engine; wait until the API is ready.

        They are named `api`, `api-2`, …; and `worker`, `worker-2`, … or by their nodes, where there are several.
        """
        for name in _numbered("api", apis):
            self.start_api(name)
        for node in self.engines:
            for name in _numbered(node if len(self.engines) > 1 else "worker", workers):
                self.start_worker(name, node)

    def start_api(self, name: str = "api", **environment: str) -> None:
        """Start an API process and wait until the service is ready; several share the port."""
        self._start("api", name, environment)
        eventually(lambda: self._is_ready(name), deadline_seconds=120)

    def start_worker(self, name: str = "worker", node: str | None = None, **environment: str) -> None:
        """Start a worker beside the engine of a node, by default the first; `environment` is this worker's alone.

        The first worker of a node comes with the node's door.
        """
        self.start_door(node or next(iter(self.engines)), **environment)
        self._start("worker", name, (self._settings_of_node(node) if node else {}) | environment)

    def start_door(self, node: str, **environment: str) -> None:
        """Start a node's door, `door-` and the node's name, unless it runs."""
        if (name := f"{DOOR}{node}") not in self._processes:
            own = self.environment | self._settings_of_node(node) | environment
            self._processes[name] = start_door(own, self._directory / f"{name}.log")

    def adopt(self, name: str, process: Process) -> None:
        """Let a process that was started elsewhere end with the others."""
        self._processes[name] = process

    def kill(self, name: str) -> None:
        """Kill a process in the middle of whatever it does (`kill -9`)."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def ask_to_end(self, name: str) -> None:
        """Ask a process to end in an orderly way, and don't wait for it."""
        self._processes[name].send_signal(signal.SIGTERM)

    def pid(self, name: str) -> int:
        """A process's number."""
        return self._processes[name].pid

    def exit_code(self, name: str) -> int | None:
        """How a process ended; None while it runs."""
        return self._processes[name].poll()

    def has_ended(self, name: str) -> bool:
        """Whether a process has ended by itself."""
        process = self._processes.get(name)
        return process is not None and process.poll() is not None

    def freeze(self, name: str) -> None:
        """Stop a process (`kill -STOP`), whatever it is doing, until `wake`."""
        self._processes[name].send_signal(signal.SIGSTOP)

    def freeze_between_writes(self, name: str) -> None:
        """Stop a process that does not hold SQLite's one lock: all others would wait for it.

        PostgreSQL rolls back what stops in the middle of a transaction (`database.IDLE_SECONDS`).
        """
        with self.database.transaction() as session:
            session.connection()  # takes the lock
            self.freeze(name)

    def wake(self, name: str) -> None:
        """Continue a frozen process."""
        self._processes[name].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Stop every process in an orderly way, and give the ports up.

        Doors are the last: what a worker finishes goes through them, and without one it waits for each agent server
        until it is killed.
        """
        doors = [process for name, process in self._processes.items() if name.startswith(DOOR)]
        _stop([process for name, process in self._processes.items() if not name.startswith(DOOR)])
        _stop(doors)
        self._processes.clear()
        self.database.close()
        for port in self._ports:
            port.release()

    def log(self) -> str:
        """Everything the processes have printed."""
        return "".join(path.read_text() for path in sorted(self._directory.glob("*.log")))

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
    """A deployment with specs of these images, not started; its processes end with the block.

    Args:
        engines: as `Deployment` takes them.
        images: the first is the default.
        prints_log: print the processes' logs at the end: pytest shows them with a failure.
        options: of `Deployment`.
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


def engine_settings(engine: Engine) -> dict[str, str]:
    """The environment variables that connect processes with an engine."""
    return {
        "AW_DOCKER_HOST": engine.host,
        "AW_NODE_ADDRESS": engine.address,
        "AW_SANDBOX_ADDRESSES": engine.network,
        # Several deployments share an engine, and all engines the machine's addresses: tests of rules turn them on.
        "AW_NETWORK_ISOLATION": "off",
        # Tests of disks set a size; a test machine may have little space.
        "AW_SANDBOX_DISK_BYTES": "0",
        "AW_MIN_FREE_DISK_BYTES": "0",
    }


def _stop(processes: Sequence[Process]) -> None:
    for process in processes:
        process.send_signal(signal.SIGCONT)  # a frozen one would not notice the next signal
        process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _numbered(name: str, count: int) -> list[str]:
    return [name if number == 1 else f"{name}-{number}" for number in range(1, count + 1)]

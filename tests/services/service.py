"""The service as it is run: an API process and worker processes, started, stopped and killed by the tests."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx

from shared.crypto import Vault, new_api_key
from shared.database import Database
from shared.models import Installation, SandboxSpec
from shared.store import specs
from tests.factories import SECRET_KEY, Person, make_person
from tests.services import http
from tests.services.directories import short_directory
from tests.services.forks import Fork
from tests.services.ports import Port
from tests.services.private_engine import PrivateEngine
from tests.waiting import eventually

Process = Fork | subprocess.Popen[bytes]


class Service:
    """One installation. Settings of its processes are `environment`; change them before a start.

    Args:
        address: where its engine publishes the ports of sandboxes.
        installation: the label of its containers; several on one engine and one broker need one each.
        launcher: a module that is given the name of the one to run, and prepares the process for it.
        start: how a process is started; to be measured, it must be started as people do.
    """

    def __init__(
        self,
        directory: Path,
        *,
        database_url: str,
        broker_url: str,
        docker_host: str,
        gateway: str,
        address: str,
        installation: str = "test-service",
        launcher: str | None = None,
        start: Callable[[Sequence[str], Mapping[str, str], Path], Process] = Fork,
    ) -> None:
        self.installation = installation
        self._port = Port()
        self.port = self._port.number
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
            "AW_GATEWAY_HOST": gateway,
            "AW_DOCKER_HOST": docker_host,
            "AW_NODE_ADDRESS": address,
            "AW_NODE": f"node-{installation}",
            "AW_LEASE_SECONDS": "3",
            "AW_REPUBLISH_SECONDS": "1",
            "AW_SWEEP_SECONDS": "0.3",
            "AW_RESYNC_SECONDS": "3",
            "AW_HEARTBEAT_SECONDS": "1",
            "AW_LOG_FORMAT": "json",
        }

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
        """Let new sandboxes be made from this spec."""
        with self.database.transaction() as session:
            spec = specs.get_spec(session, image)
            spec.position = -1
            session.add(spec)

    def make_metrics_key(self) -> str:
        """The key of the metrics, which `migrate` makes elsewhere."""
        key = new_api_key()
        (self._directory / "metrics.key").write_text(key)
        return key

    def user(self, name: str) -> "Client":
        """Somebody with a key, and a client that presents it."""
        return Client(self.url, make_person(self.database, name))

    def start_api(self, name: str = "api", **environment: str) -> None:
        """Start an API process and wait until the service is ready; several share the port."""
        self._start("api", name, environment)
        eventually(lambda: self._is_ready(name), deadline_seconds=60)

    def start_worker(self, name: str = "worker", **environment: str) -> None:
        """Start a worker; `name` is the tests' own name for it, `environment` is its alone."""
        self._start("worker", name, environment)

    def kill(self, name: str) -> None:
        """Let a process die in the middle of whatever it does (`kill -9`)."""
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
        """Let a process stand still (`kill -STOP`), whatever it is doing."""
        self._processes[name].send_signal(signal.SIGSTOP)

    def freeze_between_writes(self, name: str) -> None:
        """Let a process stand still that does not hold SQLite's one lock: all others would stand still with it.

        PostgreSQL undoes what stands still in the midst of a transaction (`database.IDLE_SECONDS`).
        """
        with self.database.transaction() as session:
            session.connection()  # takes the lock
            self.freeze(name)

    def wake(self, name: str) -> None:
        """Let a process that stands still go on."""
        self._processes[name].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Stop every process in an orderly way."""
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)  # one that stands still would not hear of its end
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        self.database.close()
        self._port.release()

    def log(self) -> str:
        """Everything the processes have printed."""
        return "".join(path.read_text() for path in sorted(self._directory.glob("*.log")))

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


def installed_service(
    database_url: str,
    broker_url: str,
    engine: PrivateEngine,
    installation: str = "test-service",
) -> AbstractContextManager[Service]:
    """The service beside an engine of the tests' own, not started."""
    return installed_beside(
        engine.host,
        engine.gateway,
        engine.address,
        database_url=database_url,
        broker_url=broker_url,
        installation=installation,
    )


@contextmanager
def installed_beside(
    docker_host: str, gateway: str, address: str, *, database_url: str, broker_url: str, installation: str
) -> Iterator[Service]:
    """The service, not started; its processes are gone after the block, and their logs are shown with a failure."""
    with short_directory("service") as directory:
        service = Service(
            directory,
            database_url=database_url,
            broker_url=broker_url,
            docker_host=docker_host,
            gateway=gateway,
            address=address,
            installation=installation,
        )
        try:
            yield service
        finally:
            service.stop()
            sys.stdout.write(service.log())


class Client(httpx.Client):
    """A user's client, with the verbs that the tests are about."""

    def __init__(self, url: str, person: Person) -> None:
        super().__init__(base_url=url, headers=person.headers, timeout=90, verify=http.NO_CERTIFICATES, trust_env=False)
        self.person = person

    def sandbox(self, sandbox_id: str) -> dict[str, Any] | None:
        """A sandbox as the batch get shows it."""
        found: dict[str, Any] | None = self.read("/api/v1/sandboxes", id=sandbox_id)[0]
        return found

    def start_sandbox(self, spec_id: str | None = None) -> str:
        """Wish for a sandbox."""
        answer = self.post("/api/v1/sandboxes", params={"sandbox_spec_id": spec_id} if spec_id else None)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def await_sandbox(self, sandbox_id: str, status: str, *, deadline_seconds: float = 60) -> dict[str, Any]:
        """The sandbox once it has that status; an ERROR that was not waited for ends the wait."""

        def there() -> dict[str, Any] | None:
            found = self.sandbox(sandbox_id)
            assert found is not None
            assert found["status"] in (status, "STARTING", "RUNNING", "PAUSED"), found
            return found if found["status"] == status else None

        return eventually(there, deadline_seconds=deadline_seconds) or {}

    def start_conversation(self, **request: object) -> str:
        """Ask for a conversation; the start task's id."""
        answer = self.post("/api/v1/app-conversations", json=request)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def start_task(self, task_id: str) -> dict[str, Any]:
        """A start task as the batch get shows it."""
        found: dict[str, Any] = self.read("/api/v1/app-conversations/start-tasks", ids=task_id)[0]
        return found

    def await_start(self, task_id: str, *, status: str = "READY", deadline_seconds: float = 90) -> dict[str, Any]:
        """The start task once it is final, which must be so in that status."""
        eventually(lambda: self.start_task(task_id)["status"] in ("READY", "ERROR"), deadline_seconds=deadline_seconds)
        task = self.start_task(task_id)
        assert task["status"] == status, task
        return task

    def read(self, path: str, **params: Any) -> Any:
        """What a GET answers."""
        answer = self.get(path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

"""The service as it is run: an API process and worker processes, started, stopped and killed by the tests."""

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from shared.crypto import Vault
from shared.database import Database
from shared.models import Installation, SandboxSpec
from shared.store import specs
from tests.factories import SECRET_KEY, Person, make_person
from tests.services import processes
from tests.waiting import eventually

REPOSITORY = Path(__file__).parents[2]


class Service:
    """One installation. Settings of its processes are `environment`; change them before a start."""

    def __init__(self, directory: Path, *, database_url: str, broker_url: str, docker_host: str, gateway: str) -> None:
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.database = Database(database_url)
        self.vault = Vault([SECRET_KEY])
        self._directory = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            "AW_VAR_DIR": str(directory),
            "AW_DATABASE_URL": database_url,
            "AW_REDIS_URL": broker_url,
            "AW_SECRET_KEYS": SECRET_KEY,
            "AW_PORT": str(self.port),
            "AW_GATEWAY_HOST": gateway,
            "AW_DOCKER_HOST": docker_host,
            "AW_NODE": "node-test",
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
            session.add(Installation(id="test-service"))
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

    def user(self, name: str) -> "Client":
        """Somebody with a key, and a client that presents it."""
        return Client(self.url, make_person(self.database, name))

    def start_api(self) -> None:
        """Start an API process and wait until it is ready."""
        self._start("api", "api", {})
        eventually(self._is_ready, deadline_seconds=60)

    def start_worker(self, name: str = "worker", **environment: str) -> None:
        """Start a worker; `name` is the tests' own name for it, `environment` is its alone."""
        self._start("worker", name, environment)

    def kill(self, name: str) -> None:
        """Let a process die in the middle of whatever it does (`kill -9`)."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def exit_code(self, name: str) -> int | None:
        """How a process ended; None while it runs."""
        return self._processes[name].poll()

    def freeze(self, name: str) -> None:
        """Let a process stand still (`kill -STOP`)."""
        self._processes[name].send_signal(signal.SIGSTOP)

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

    def log(self) -> str:
        """Everything the processes have printed."""
        return "".join(path.read_text() for path in sorted(self._directory.glob("*.log")))

    def _start(self, module: str, name: str, environment: dict[str, str]) -> None:
        settings = [f"{key}={value}" for key, value in {**self.environment, **environment}.items()]
        command = ["env", f"PYTHONPATH={REPOSITORY}", *settings, sys.executable, "-m", module]
        self._processes[name] = processes.start(command, self._directory / f"{name}.log")

    def _is_ready(self) -> bool:
        if self._processes["api"].poll() is not None:
            raise RuntimeError(f"the API did not start: {self.log()[-2000:]}")
        try:
            return httpx.get(f"{self.url}/ready", timeout=5).status_code == 200
        except httpx.TransportError:
            return False


class Client(httpx.Client):
    """A user's client, with the verbs that the tests are about."""

    def __init__(self, url: str, person: Person) -> None:
        super().__init__(base_url=url, headers=person.headers, timeout=30)
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

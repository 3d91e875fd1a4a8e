"""The service with its failpoints on: killed at a point that is asked for, restarted, and held to its promise."""

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sqlmodel import select

from shared.failpoints import VARIABLE
from shared.models import Conversation, Sandbox, SandboxTransition, StartTask
from shared.states import Desired, Status
from shared.store import nodes
from tests.factories import make_person
from tests.faults.checker import Evidence, check
from tests.faults.history import RecordingClient
from tests.services.private_engine import PrivateEngine
from tests.services.service import Service
from tests.waiting import eventually
from worker.engine import DockerEngine

PROCESSES = ("api", "worker")
# The last fault is followed by agreement within this time: the promise.
CONVERGENCE_SECONDS = 30.0
# How long a process that has settled may take to come by the point at which it is to be killed.
REACH_SECONDS = 1.5
INSTALLATION = "test-service"


class Runner:
    """One installation, its history, and the file that arms its processes."""

    def __init__(self, service: Service, engine: PrivateEngine, directory: Path, doomed: frozenset[str]) -> None:
        self.client = RecordingClient(service.url, make_person(service.database, "alice"))
        self._service = service
        self._engine = DockerEngine(engine.host)
        self._directory = directory
        self._doomed = doomed
        self._mode = ""
        # Seconds from a restart to agreement, the longest so far.
        self.slowest = 0.0

    def start(self, mode: str) -> None:
        """Start both processes, to record their points or to be armed."""
        self._mode = mode
        for name in PROCESSES:
            self._start(name)
        eventually(self._has_node)

    def stop(self) -> None:
        """Let both go."""
        for name in PROCESSES:
            self._service.kill(name)

    def close(self) -> None:
        """Close what the tests themselves have opened."""
        self._engine.close()

    def record(self, act: Callable[[], None]) -> dict[str, set[str]]:
        """The points that each process passes while this is done and until it has settled."""
        for name in PROCESSES:
            self._file("record", name).write_text("")
        act()
        self.await_agreement()
        return {name: set(self._file("record", name).read_text().splitlines()) for name in PROCESSES}

    def kill_at(self, process: str, point: str, act: Callable[[], None]) -> bool:
        """Kill the process where it passes the point while this is done, and restart it; False: it did not pass."""
        armed = self._file("armed", process)
        armed.write_text(point)
        act()
        reach = time.monotonic() + REACH_SECONDS
        eventually(lambda: not armed.exists() or (time.monotonic() > reach and not self.violations()))
        with suppress(FileNotFoundError):
            armed.unlink()
            return False
        eventually(lambda: self._service.exit_code(process) is not None)
        assert self._service.exit_code(process) == -signal.SIGKILL
        self._service.kill(process)
        self._start(process)
        return True

    def await_agreement(self) -> None:
        """Wait until the promise is kept."""
        began = time.monotonic()
        try:
            eventually(lambda: not self.violations(), deadline_seconds=CONVERGENCE_SECONDS, interval_seconds=0.05)
        except AssertionError:
            assert self.violations() == []  # names them
        self.slowest = max(self.slowest, time.monotonic() - began)

    def violations(self) -> list[str]:
        """What is not as it was promised, now."""
        return check(self._evidence())

    def await_status(self, sandbox_id: str, status: Status) -> None:
        """Wait until the sandbox is at rest in that status."""

        def there() -> bool:
            with self._service.database.reading() as session:
                row = session.get_one(Sandbox, sandbox_id)
            return row.status == status and row.generation == row.observed_generation and row.lease_until is None

        eventually(there)

    def clear(self) -> None:
        """Delete whatever is left, from whatever state it is in, and see it gone."""
        with self._service.database.reading() as session:
            left = session.exec(select(Sandbox.id).where(Sandbox.desired != Desired.DELETED)).all()
        for sandbox_id in left:
            self.client.delete(sandbox_id)
        self.await_agreement()

    def _evidence(self) -> Evidence:
        # The engine first, as the service itself does: a container's row is always older than the container.
        containers = self._engine.list_containers(INSTALLATION)
        volumes = self._engine.list_volumes(INSTALLATION)
        with self._service.database.reading() as session:
            return Evidence(
                history=self.client.entries,
                sandboxes=session.exec(select(Sandbox)).all(),
                transitions=session.exec(select(SandboxTransition)).all(),
                start_tasks=session.exec(select(StartTask)).all(),
                conversations=session.exec(select(Conversation)).all(),
                containers=containers,
                volumes=volumes,
                doomed=self._doomed,
            )

    def _has_node(self) -> bool:
        """Whether a sandbox would be placed at once; else its first message would never be sent."""
        with self._service.database.reading() as session:
            return nodes.place(session) is not None

    def _start(self, process: str) -> None:
        self._service.environment[VARIABLE] = f"{self._mode}:{self._file(self._mode, process)}"
        if process == "api":
            self._service.start_api()
        else:
            self._service.start_worker()

    def _file(self, mode: str, process: str) -> Path:
        return self._directory / f"{process}.{mode}"

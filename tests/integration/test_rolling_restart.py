"""`make restart` under load: no request fails, no job is lost, no sandbox is touched."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import effort
from tests.integration.conftest import COUNT, ServiceOfRoot
from tests.services.directories import REPOSITORY
from tests.services.private_engine import PrivateEngine
from tests.services.supervised import SupervisedService
from tests.waiting import eventually

SANDBOXES = "/api/v1/sandboxes"
# One item per user: whether it keeps its connections. More users would keep the CPU busy and delay the restart.
KEEPING = effort.choose(quick=(True, False), change=(True, False), thorough=(True, True, False, False))
# The maximum duration of a request while one of two processes restarts.
NOTICED_SECONDS = 1.0
# With two processes of each kind, one runs while the other restarts; with one, requests and jobs wait for it.
PROCESSES = tuple(f"{kind}.{number + 1}" for kind in ("worker", "web") for number in range(COUNT))

# The service of the first test is the one that `test_separate_users` continues.
pytestmark = pytest.mark.xdist_group("service_of_root")


@pytest.fixture
def supervised(service_of_root: ServiceOfRoot) -> Iterator[SupervisedService]:
    service = service_of_root.start()
    yield service
    sys.stdout.write(service.log.read_text())  # shown with a failure


@dataclass
class Load:
    """A user who starts, pauses, resumes, lists and deletes sandboxes in sequence, until the event is set."""

    client: httpx.Client
    keeps_connections: bool
    requests: int = 0
    # The slowest read, in seconds.
    slowest: float = 0.0
    # Requests that took longer than `NOTICED_SECONDS`.
    slow: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)

    def run(self, stopped: threading.Event) -> None:
        while not stopped.is_set():
            sandbox_id = self.send("POST", SANDBOXES).get("id")
            if sandbox_id is None:
                continue
            self.made.append(sandbox_id)
            for verb in ("pause", "resume"):
                self.send("POST", f"{SANDBOXES}/{sandbox_id}/{verb}")
                self.send("GET", f"{SANDBOXES}/search")
            self.send("DELETE", f"{SANDBOXES}/{sandbox_id}")

    def send(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        self.requests += 1
        headers = {} if self.keeps_connections else {"Connection": "close"}
        began = time.monotonic()
        try:
            response = self.client.request(method, path, headers=headers, **options)
        except httpx.TransportError as error:
            self.failures.append(f"{method} {path}: {error!r}")
            return {}
        took = time.monotonic() - began
        if method == "GET":  # a write may wait for other writers of SQLite, restart or not
            self.slowest = max(self.slowest, took)
        if took > NOTICED_SECONDS:
            self.slow.append(f"{time.strftime('%H:%M:%S')}: {method} {path} took {took:.1f} s")
        if response.status_code != 200:
            self.failures.append(f"{method} {path}: {response.status_code} {response.text}")
        found: dict[str, Any] = response.json()
        return found


def test_restart_of_every_process_fails_no_request(supervised: SupervisedService, engine: PrivateEngine) -> None:
    with supervised.client() as client:
        kept = [client.post(SANDBOXES).json()["id"] for _ in range(2)]
        eventually(lambda: all(status_of(client, sandbox_id) == "RUNNING" for sandbox_id in kept), deadline_seconds=240)
        before = [describe(client, engine, sandbox_id) for sandbox_id in kept]
        loads, quiet = restart_under_load(supervised)
        assert [failure for load in loads for failure in load.failures] == []
        assert all(load.requests > 20 for load in loads)
        if COUNT > 1:
            # On a busy machine, requests are also slow without a restart.
            assert max(load.slowest for load in loads) <= max(NOTICED_SECONDS, 2 * quiet), quiet
        assert {name: supervised.spawned(name) for name in PROCESSES} == dict.fromkeys(PROCESSES, 2)
        names = sorted(f"aw-{name}" for name in kept)
        eventually(lambda: sorted(engine.containers()) == sorted(engine.volumes()) == names, deadline_seconds=180)
        assert [describe(client, engine, sandbox_id) for sandbox_id in kept] == before
        made = [sandbox_id for load in loads for sandbox_id in load.made]
        assert all(client.get(f"{SANDBOXES}/{sandbox_id}").status_code == 404 for sandbox_id in made)


def test_restart_without_a_running_service_fails(tmp_path: Path) -> None:
    done = restart(os.environ | {"AW_VAR_DIR": str(tmp_path)})
    assert done.returncode == 1
    assert "no service runs here" in done.stderr


@contextmanager
def running_loads(loads: Sequence[Load]) -> Iterator[None]:
    """Run each load in a thread of its own, until the end of the block."""
    stopped = threading.Event()
    threads = [threading.Thread(target=load.run, args=(stopped,)) for load in loads]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


def restart_under_load(supervised: SupervisedService) -> tuple[list[Load], float]:
    """Restart all processes under load; return the loads, and the slowest request before the restart in seconds."""
    loads = [Load(supervised.client(), keeps) for keeps in KEEPING]
    quiet = 0.0
    with running_loads(loads):
        if COUNT > 1:
            eventually(lambda: all(load.requests > 50 or load.failures for load in loads), deadline_seconds=120)
            quiet = max(load.slowest for load in loads)
            for load in loads:
                load.slowest = 0.0
        done = restart(supervised.environment)
    slowest = max(load.slowest for load in loads)
    sys.stdout.write(f"{done.stdout}{sum(load.requests for load in loads)} requests, slowest read {slowest:.3f} s\n")
    sys.stdout.writelines(f"{line}\n" for load in loads for line in load.slow)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(PROCESSES)
    for load in loads:
        load.client.close()
    return loads, quiet


def restart(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deploy.service.restart"]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)


def status_of(client: httpx.Client, sandbox_id: str) -> str:
    return str(client.get(f"{SANDBOXES}/{sandbox_id}").json()["status"])


def describe(client: httpx.Client, engine: PrivateEngine, sandbox_id: str) -> tuple[str, int]:
    started = engine.docker("inspect", "--format", "{{.State.StartedAt}}", f"aw-{sandbox_id}").strip()
    return started, len(client.get(f"{SANDBOXES}/{sandbox_id}/transitions").json())

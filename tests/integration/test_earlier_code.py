"""An update with a migration, under load: the earlier code works on the new schema until it is replaced."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.integration.earlier_code import check_out, find_earlier_commit, run_command_line, start
from tests.integration.test_rolling_restart import SANDBOXES, Load, running_loads
from tests.services import http
from tests.services.deployment_settings import engine_settings
from tests.services.directories import REPOSITORY, short_directory
from tests.services.engine import TINY_IMAGE
from tests.services.ports import Port
from tests.services.private_engine import PrivateEngine
from tests.services.valkey import Valkey
from tests.waiting import eventually

# An image that the service does not build by itself.
IMAGE = "earlier-code/tiny:1"
SETTINGS = {"llm_model": "openai/none", "llm_api_key": "key", "llm_base_url": "http://127.0.0.1:9"}
MESSAGE = {"initial_message": {"content": [{"type": "text", "text": "hello"}]}}


class Conversations(Load):
    """A user who starts conversations, reads lists and deletes the sandboxes."""

    def run(self, stopped: threading.Event) -> None:
        while not stopped.is_set():
            self.send("POST", "/api/settings", json=SETTINGS)
            task = self.send("POST", "/api/v1/app-conversations", params={"wait": 60}, json=MESSAGE)
            if task.get("status") != "READY":
                self.failures.append(str(task))
                continue
            self.made.append(task["sandbox_id"])
            shown = self.send("GET", f"/api/v1/app-conversations/{task['app_conversation_id']}")
            if shown.get("sandbox_id") != task["sandbox_id"]:
                self.failures.append(str(shown))
            self.send("GET", "/api/v1/app-conversations/search")
            self.send("DELETE", f"{SANDBOXES}/{task['sandbox_id']}")


@dataclass
class Code:
    """An API process and a worker of one tree, with the door of the node if the code has one."""

    name: str
    tree: Path
    directory: Path
    environment: dict[str, str]
    port: Port = field(default_factory=Port)
    door_port: Port = field(default_factory=Port)
    # The door of the node outlives an update: `make restart` does not restart it.
    has_own_door: bool = True
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port.number}"

    def start(self) -> None:
        ports = {"AW_PORT": self.port.number, "AW_CLIENT_PORT": 0, "AW_DOOR_PORT": self.door_port.number}
        environment = self.environment | {name: str(number) for name, number in ports.items()}
        has_door = self.has_own_door and (self.tree / "deploy" / "door").exists()
        for module in ("deploy.door", "worker", "api") if has_door else ("worker", "api"):
            self.running[module] = start(self.tree, module, self.directory / f"{self.name}-{module}.log", environment)
        eventually(self.is_ready, deadline_seconds=180, interval_seconds=0.1)

    def stop_module(self, module: str) -> None:
        """Stop one of its processes gracefully."""
        self.running[module].terminate()
        self.running.pop(module).wait(60)

    def stop(self) -> None:
        """Stop the processes gracefully."""
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            process.wait(60)
        self.port.release()
        if self.has_own_door:
            self.door_port.release()

    def is_ready(self) -> bool:
        for module, process in self.running.items():
            assert process.poll() is None, self.log(module)
        try:
            return http.get(f"{self.url}/ready", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def client(self) -> httpx.Client:
        key = (self.directory / "admin.key").read_text().strip()
        return http.open_client(self.url, headers={"Authorization": f"Bearer {key}"}, timeout=90)

    def log(self, module: str) -> str:
        return (self.directory / f"{self.name}-{module}.log").read_text()


@pytest.fixture
def both(empty_url: str, valkey: Valkey, engine: PrivateEngine, tmp_path: Path) -> Iterator[tuple[Code, Code]]:
    """The code before the newest migration, running on its own schema, and the current code, not started."""
    with running_code(find_earlier_commit(), tmp_path / "earlier", empty_url, valkey, engine) as earlier:
        today = Code("today", REPOSITORY, earlier.directory, earlier.environment)
        try:
            yield earlier, today
        finally:
            today.stop()
            sys.stdout.writelines(today.log(module) for module in today.running)  # shown with a failure


@contextmanager
def running_code(commit: str, tree: Path, url: str, valkey: Valkey, engine: PrivateEngine) -> Iterator[Code]:
    """The code of a commit, running on an empty database that it has migrated."""
    engine.docker("tag", TINY_IMAGE, IMAGE)
    check_out(commit, tree)
    with short_directory("earlier") as directory:
        environment = {
            "AW_VAR_DIR": str(directory),
            "AW_DATABASE_URL": url,
            "AW_REDIS_URL": valkey.url,
            **engine_settings(engine),
            "AW_DEFAULT_SANDBOX_IMAGE": IMAGE,
            "AW_LOG_FORMAT": "json",
            "AW_SWEEP_SECONDS": "0.3",
        }
        for arguments in (["migrate"], ["bootstrap"], ["specs", "set", IMAGE, "--env", "TINY_CONVERSES=1"]):
            run_command_line(tree, *arguments, environment=environment)
        code = Code(tree.name, tree, directory, environment)
        try:
            code.start()
            yield code
        finally:
            code.stop()
            sys.stdout.writelines(code.log(module) for module in code.running)  # shown with a failure


@contextmanager
def load_on(code: Code) -> Iterator[list[Load]]:
    """Run three users of that code's API until the end of the block."""
    with ExitStack() as stack:
        clients = [stack.enter_context(code.client()) for _ in range(3)]
        loads = [Load(clients[0], True), Load(clients[1], False), Conversations(clients[2], True)]  # noqa: FBT003
        with running_loads(loads):
            yield loads


def go_on(loads: list[Load], intervals: int) -> None:
    """Wait until each load has begun that number of new cycles, or one has failed."""
    wanted = [len(load.made) + intervals for load in loads]
    eventually(
        lambda: all(len(load.made) >= number or load.failures for load, number in zip(loads, wanted, strict=True)),
        deadline_seconds=120,
    )


@pytest.mark.nightly  # tests of migrations cover rows and earlier statements for each change
@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_update_with_a_migration_under_load_fails_no_request(both: tuple[Code, Code], engine: PrivateEngine) -> None:
    earlier, today = both
    with earlier.client() as client:
        kept = client.post(SANDBOXES, params={"wait": 60}).json()["id"]
    container = engine.docker("inspect", "--format", "{{.Id}} {{.State.StartedAt}}", f"aw-{kept}")
    publishes = published(engine, kept)
    engine.docker("exec", f"aw-{kept}", "sh", "-c", "echo precious >/workspace/kept")

    with ExitStack() as stack:
        with load_on(earlier) as before:
            go_on(before, 1)
            assert "schema_migrated" in run_command_line(REPOSITORY, "migrate", environment=today.environment)
            go_on(before, 1)
            if publishes:
                earlier.stop_module("worker")  # it would create containers that publish ports
            today.start()
            after = stack.enter_context(load_on(today))
            go_on([*before, *after], 1)
        earlier.stop()
        go_on(after, 1)

    assert [failure for load in (*before, *after) for failure in load.failures] == []
    if publishes:
        eventually(lambda: is_replaced(engine, kept), deadline_seconds=180)
    else:
        assert engine.docker("inspect", "--format", "{{.Id}} {{.State.StartedAt}}", f"aw-{kept}") == container
    eventually(lambda: engine.containers() == engine.volumes() == [f"aw-{kept}"], deadline_seconds=180)
    for code in (earlier, today):
        assert re.search(r'"event": "(action|step)"', code.log("worker")), f"the worker of {code.name} did nothing"
        for module in {"worker", *code.running}:
            assert errors_in(code.log(module)) == []
    with today.client() as client:
        assert [item["id"] for item in client.get(f"{SANDBOXES}/search").json()["items"]] == [kept]


def published(engine: PrivateEngine, sandbox_id: str) -> bool:
    """Whether a sandbox's container publishes ports."""
    return bool(engine.docker("port", f"aw-{sandbox_id}").strip())


def is_replaced(engine: PrivateEngine, sandbox_id: str) -> bool:
    """Whether a sandbox runs in a container without published ports, on its files."""
    if f"aw-{sandbox_id}" not in engine.docker("ps", "--format", "{{.Names}}").split() or published(engine, sandbox_id):
        return False
    return engine.docker("exec", f"aw-{sandbox_id}", "cat", "/workspace/kept").strip() == "precious"


def errors_in(log: str) -> list[str]:
    """The errors except those of jobs that found SQLite locked: on a busy machine such jobs are retried."""
    return [line for line in log.splitlines() if '"level": "error"' in line and "database is locked" not in line]

"""A backup under load, a machine that is lost, and a restore into a clean installation on a clean engine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.cli.output import NAME
from tests.integration.test_rolling_restart import SANDBOXES, Load, running_loads
from tests.services.directories import short_directory
from tests.services.engine import TINY_IMAGE
from tests.services.postgres import Postgres
from tests.services.private_engine import PrivateEngine
from tests.services.supervised import SupervisedService, running_supervised
from tests.waiting import eventually

# An image that `make run` does not build by itself.
IMAGE = "backup/tiny:1"
PASSPHRASE = "correct horse battery staple"
SETTINGS = {"llm_model": "openai/none", "llm_api_key": "key", "llm_base_url": "http://127.0.0.1:9"}
MESSAGE = {"initial_message": {"content": [{"type": "text", "text": "hello"}]}}
SECRET = {"name": "TOKEN", "value": "a secret of the user"}
DISK = 64 * 1024**2
STATUS = "status"


@pytest.fixture
def urls(kind: str, request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """The database URLs of the first and of the restored installation; empty: SQLite in the installation's folder."""
    if kind == "sqlite":
        yield "", ""
        return
    server: Postgres = request.getfixturevalue("postgres_server")
    names = [server.create(), server.create()]
    yield server.url(names[0]), server.url(names[1])
    for name in names:
        server.drop(name)


@pytest.mark.nightly  # tests of `shared/backup` and `worker/backup` cover each part for each change
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
@pytest.mark.parametrize("disk_bytes", [DISK, 0], ids=["disks", "volumes"])
def test_restored_installation_continues_from_the_backup(
    urls: tuple[str, str], disk_bytes: int, engine: PrivateEngine, tmp_path: Path
) -> None:
    engine.docker("tag", TINY_IMAGE, IMAGE)
    (tmp_path / "passphrase").write_text(PASSPHRASE)
    with running(engine, urls[0], disk_bytes) as service, service.client() as client:
        run(service.environment, "specs", "set", IMAGE, "--env", "TINY_CONVERSES=1", "--env", "TINY_REPORTS=1")
        kept = paused_conversation(client, engine)
        running_id = client.post(SANDBOXES, params={"wait": 60}).json()["id"]
        history = events_of(client, kept)
        assert history
        with load_on(service) as loads:
            response = run(service.environment, "db", "backup", str(tmp_path / "db"), *passphrase(tmp_path))
            assert "with its keys, encrypted" in response
            files = run(service.environment, "nodes", "backup", str(tmp_path / "files"))
            eventually(lambda: all(load.requests > 20 or load.failures for load in loads), deadline_seconds=120)
        assert [failure for load in loads for failure in load.failures] == []
        assert "the files of 1 sandbox, " in files
    engine.clear()  # the machine is lost

    with short_directory("restored", in_memory=True) as var:
        environment = service.environment | {"AW_VAR_DIR": str(var), "AW_DATABASE_URL": urls[1]}
        run(environment, "db", "restore", str(tmp_path / "db"), *passphrase(tmp_path))
        assert "the files of 1 sandbox, " in run(environment, "nodes", "restore", str(tmp_path / "files"))
        with running(engine, urls[1], disk_bytes, var) as service, service.client() as client:
            # Sandboxes that do not run are reported, and none of them is started automatically.
            both = (kept["sandbox_id"], running_id)
            eventually(lambda: all(is_missing(client, sandbox_id) for sandbox_id in both), deadline_seconds=120)
            assert client.get("/api/v1/secrets/search").json()["items"][0]["name"] == SECRET["name"]
            assert events_of(client, kept) == history
            resumed = client.post(f"{SANDBOXES}/{kept['sandbox_id']}/resume", params={"wait": 60})
            assert resumed.status_code == 200, resumed.text
            eventually(lambda: status_of(client, kept["sandbox_id"]) == "RUNNING", deadline_seconds=120)
            assert inside(engine, kept["sandbox_id"], "cat /workspace/project/file") == "precious\n"


def paused_conversation(client: httpx.Client, engine: PrivateEngine) -> dict[str, Any]:
    """Start a conversation, write a file in its sandbox, and pause the sandbox."""
    assert client.post("/api/settings", json=SETTINGS).status_code == 200
    assert client.post("/api/v1/secrets", json=SECRET).status_code in (200, 201)
    task: dict[str, Any] = client.post("/api/v1/app-conversations", params={"wait": 60}, json=MESSAGE).json()
    assert task[STATUS] == "READY", task
    eventually(lambda: events_of(client, task), deadline_seconds=60)
    inside(engine, task["sandbox_id"], "echo precious >/workspace/project/file")
    assert client.post(f"{SANDBOXES}/{task['sandbox_id']}/pause", params={"wait": 60}).status_code == 200
    eventually(lambda: status_of(client, task["sandbox_id"]) == "PAUSED", deadline_seconds=60)
    return task


@contextmanager
def running(engine: PrivateEngine, url: str, disk_bytes: int, var: Path | None = None) -> Iterator[SupervisedService]:
    settings = {
        "AW_DATABASE_URL": url,
        "AW_DEFAULT_SANDBOX_IMAGE": IMAGE,
        "AW_SANDBOX_DISK_BYTES": str(disk_bytes),
    }
    processes = ("web=1", "worker=1", "flower=0")
    launcher = ("env", *map("=".join, settings.items()))
    with running_supervised(engine, *processes, var=var, launcher=launcher) as service:
        service.environment |= settings
        yield service


@contextmanager
def load_on(service: SupervisedService) -> Iterator[list[Load]]:
    """Run two users until the end of the block."""
    with ExitStack() as stack:
        loads = [Load(stack.enter_context(service.client()), keeps) for keeps in (True, False)]
        with running_loads(loads):
            yield loads


def run(environment: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "-c", "from shared.cli.app import main; main()", *arguments]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    sys.stdout.write(f"$ {NAME} {' '.join(arguments)}\n{done.stdout}{done.stderr}")
    assert done.returncode == 0, f"{NAME} {arguments}: {done.stdout}{done.stderr}"
    return done.stdout


def passphrase(folder: Path) -> tuple[str, str]:
    return "--passphrase-file", str(folder / "passphrase")


def events_of(client: httpx.Client, task: dict[str, Any]) -> list[dict[str, Any]]:
    response = client.get(f"/api/v1/conversation/{task['app_conversation_id']}/events/search")
    assert response.status_code == 200, response.text
    return list(response.json()["items"])


def is_missing(client: httpx.Client, sandbox_id: str) -> bool:
    found = client.get(f"{SANDBOXES}/{sandbox_id}").json()
    return (found[STATUS], found.get("reason")) == ("ERROR", "container_missing")


def status_of(client: httpx.Client, sandbox_id: str) -> str:
    return str(client.get(f"{SANDBOXES}/{sandbox_id}").json()[STATUS])


def inside(engine: PrivateEngine, sandbox_id: str, script: str) -> str:
    return engine.docker("exec", f"aw-{sandbox_id}", "sh", "-c", script)

"""The service, started by root: the API and the worker run as separate users.

As a control, the test also checks that root has each access that is denied to the users.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.conftest import COUNT, IMAGE, ServiceOfRoot
from tests.integration.secret_search import command_line_of, family
from tests.services.directories import REPOSITORY, short_directory
from tests.services.own_users import API, DOOR, EGRESS, GROUP, WORKER, launcher, run_as
from tests.services.ports import Port
from tests.services.private_engine import PrivateEngine
from tests.services.slots import is_unused, taken_slot
from tests.services.supervised import SupervisedService, running_supervised
from tests.waiting import eventually

SANDBOXES = "/api/v1/sandboxes"
STRANGER = 64999

# `test_rolling_restart`, which sorts before this file, uses the service of root first.
pytestmark = pytest.mark.xdist_group("service_of_root")


@pytest.fixture
def as_root(service_of_root: ServiceOfRoot) -> tuple[Path, str]:
    """The directory of a service that ran entirely as root before, and the id of a sandbox of it."""
    service = service_of_root.start()
    with service.client() as client:
        sandbox_id = str(client.post(SANDBOXES, params={"wait": 60}).json()["id"])
    assert owner_of(service, "-m api") == {0}
    service_of_root.end()
    return service.var, sandbox_id


@pytest.fixture
def service(engine: PrivateEngine, as_root: tuple[Path, str]) -> Iterator[SupervisedService]:
    var, _ = as_root
    with short_directory("users") as stage:
        stage.chmod(0o755)
        var.chmod(0o700)
        with Port() as flower, taken_slot(lambda slot: is_unused(slot.network)) as slot:
            command = running_supervised(
                engine,
                f"web={COUNT}",
                f"worker={COUNT}",
                var=var,
                launcher=launcher(stage),
                AW_DEFAULT_SANDBOX_IMAGE=IMAGE,
                AW_FLOWER_PORT=str(flower),
                AW_OWN_USERS="1",
                # The filter writes the rules of the network for the worker.
                AW_NETWORK_ISOLATION="on",
                AW_SANDBOX_ADDRESSES=str(slot.network),
                AW_SANDBOX_DNS="none",
            )
            with command as service:
                yield service


def test_processes_run_as_separate_users(
    service: SupervisedService, engine: PrivateEngine, as_root: tuple[Path, str]
) -> None:
    words = {"-m api": API, "-m worker": WORKER, "broker.sock": API, "deploy.service.flower": API, "haproxy": DOOR}
    eventually(lambda: owner_of(service, "deploy.service.flower"), deadline_seconds=180)
    assert {word: owner_of(service, word) for word in words} == {word: {user} for word, user in words.items()}
    assert owner_of(service, "deploy.engine_filter") == {0}
    assert "run as root" not in service.log.read_text()
    check_sandboxes(service, as_root[1])
    check_engine(service, engine)
    check_files(service)
    check_egress_proxy(service, engine)
    check_restart(service, as_root[1])


def check_sandboxes(service: SupervisedService, before: str) -> None:
    """Assert that the earlier sandbox and a new one can be paused and resumed."""
    with service.client() as client:
        after = client.post(SANDBOXES, params={"wait": 60}).json()["id"]
        for sandbox_id in (before, after):
            assert client.get(f"{SANDBOXES}/{sandbox_id}").json()["status"] == "RUNNING"
            for verb in ("pause", "resume"):
                assert client.post(f"{SANDBOXES}/{sandbox_id}/{verb}", params={"wait": 60}).is_success
            assert client.get(f"{SANDBOXES}/{sandbox_id}").json()["status"] == "RUNNING"
        assert client.delete(f"{SANDBOXES}/{after}", params={"wait": 60}).is_success
        assert client.get("/metrics", headers=metrics_login(service)).status_code == 200


def metrics_login(service: SupervisedService) -> dict[str, str]:
    return {"Authorization": f"Bearer {(service.var / 'metrics.key').read_text().strip()}"}


def check_engine(service: SupervisedService, engine: PrivateEngine) -> None:
    """Assert that the worker may open the filter's socket only, and the API neither socket."""
    filtered, straight = str(service.var / "run" / "engine.sock"), engine.host.removeprefix("unix://")
    Path(straight).parent.chmod(0o755)  # otherwise both would be denied by the directory alone
    reached = {
        (user, path): run_as(user, "test", "-w", path).returncode == 0
        for user in (0, API, WORKER)
        for path in (filtered, straight)
    }
    assert [pair for pair, is_reached in reached.items() if is_reached] == [
        (0, filtered),
        (0, straight),
        (WORKER, filtered),
    ]
    for word in ("-m api", "-m worker"):
        status = Path(f"/proc/{pids_of(service, word)[0]}/status").read_text()
        assert re.findall(r"^(?:Groups:\t(.*)|CapEff:\t(.*))$", status, re.MULTILINE)[-1][1] == "0" * 16
        assert re.findall(r"^Groups:[ \t]*(.*)$", status, re.MULTILINE)[0].split() in ([], [str(GROUP)])


def check_files(service: SupervisedService) -> None:
    """Assert that both users can read the key and write the database, but not write the files that root reads."""
    var = service.var
    allowed = {
        ("-r", var / "secret.key"): {API, WORKER},
        ("-w", var / "secret.key"): set(),
        ("-r", var / "admin.key"): set(),
        ("-r", var / "flower.password"): {API},
        ("-w", var / "agent-workspace.db"): {API, WORKER},
        ("-w", var / "run" / "broker.sock"): {API, WORKER},
        ("-w", var / "run" / "workers"): {WORKER},
        ("-w", var / "broker"): {API},
        ("-w", var): set(),
        ("-w", var / "run"): set(),
        ("-w", var / "run" / "supervisord.conf"): set(),
        ("-w", var / "run" / "supervisor.sock"): set(),
    }
    for (mode, path), users in allowed.items():
        found = {user for user in (API, WORKER, STRANGER) if run_as(user, "test", mode, str(path)).returncode == 0}
        assert (mode, path, found) == (mode, path, users)
        assert run_as(0, "test", mode, str(path)).returncode == 0


def check_egress_proxy(service: SupervisedService, engine: PrivateEngine) -> None:
    """Assert that programs use the proxy, whose user reads the worker's files below folders that are closed to it."""
    command = str(Path(sys.executable).with_name("agent-workspace"))
    subprocess.run(
        [command, "specs", "set", IMAGE, "--egress", "allowed.invalid"],
        env=service.environment,
        check=True,
        capture_output=True,
        cwd=service.var,
    )
    with service.client() as client:
        sandbox_id = client.post(SANDBOXES, params={"wait": 60}).json()["id"]
        eventually(lambda: owner_of(service, "squid") == {EGRESS})

        def response(host: str) -> str:
            return engine.docker("exec", f"aw-{sandbox_id}", "sh", "-c", f"wget -O- http://{host}/ 2>&1 || true")

        # An allowed name that does not exist.
        eventually(lambda: "HTTP/1.1 50" in response("allowed.invalid"))
        assert "HTTP/1.1 403" in response("other.invalid")
        assert run_as(EGRESS, "test", "-r", str(service.var / "run" / "egress")).returncode != 0
        assert client.delete(f"{SANDBOXES}/{sandbox_id}", params={"wait": 60}).is_success


def check_restart(service: SupervisedService, sandbox_id: str) -> None:
    """Assert that `make restart` replaces the API and the worker, with the same users."""
    before = {word: pids_of(service, word) for word in ("-m api", "-m worker")}
    command = ["nsenter", "--mount", f"--target={service.pid}", f"--wdns={REPOSITORY}"]
    done = subprocess.run(
        [*command, sys.executable, "-m", "deploy.service.restart"],
        env=service.environment | {"PYTHONPATH": str(REPOSITORY), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(set(pids).isdisjoint(pids_of(service, word)) for word, pids in before.items())
    assert (owner_of(service, "-m api"), owner_of(service, "-m worker")) == ({API}, {WORKER})
    with service.client() as client:
        assert client.post(f"{SANDBOXES}/{sandbox_id}/pause", params={"wait": 60}).is_success
        assert client.get(f"{SANDBOXES}/{sandbox_id}").json()["status"] == "PAUSED"


def pids_of(service: SupervisedService, words: str) -> list[int]:
    """The pids of the service's processes, without their launchers, with these words in their command lines."""
    found = []
    for pid in family(service.pid):
        command = command_line_of(pid).replace("\0", " ")
        if words in command and not command.startswith(("bash", "setpriv", "/bin/bash", "/usr/bin/env")):
            found.append(pid)
    return found


def owner_of(service: SupervisedService, words: str) -> set[int]:
    found = set()
    for pid in pids_of(service, words):
        with suppress(FileNotFoundError):  # the process has ended
            found.add(Path(f"/proc/{pid}").stat().st_uid)
    return found

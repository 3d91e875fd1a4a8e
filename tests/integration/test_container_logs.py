"""Logs of containers with the service's processes: live while a container runs, kept afterwards, without secrets."""

import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from shared.cli.app import main
from shared.container_logs.limits import MAX_BYTES
from shared.models import Sandbox
from tests.factories import session_key_of
from tests.rows import stored_row
from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.engine import TINY_IMAGE
from tests.services.private_engine import PrivateEngine
from tests.shared.cli.results import Cli, Result
from tests.waiting import eventually
from worker.sandboxes.container_spec import container_name

BROKEN_IMAGE = "agent-workspace/tiny:broken"
SECRET = "the-stored-secret-0003"
PART = 16 * 1024


@pytest.fixture
def service(installed: Deployment, engine: PrivateEngine) -> Deployment:
    engine.docker("tag", TINY_IMAGE, BROKEN_IMAGE)
    installed.prepare(TINY_IMAGE)
    installed.add_spec(BROKEN_IMAGE, {"TINY_EXIT_CODE": "3"})
    installed.start()
    return installed


@pytest.fixture
def alice(service: Deployment) -> Iterator[Client]:
    with service.user("alice") as client:
        stored = client.post("/api/v1/secrets", json={"name": "STORED", "value": SECRET})
        assert stored.is_success, stored.text
        yield client


def logs_of(client: Client, sandbox_id: str, **query: Any) -> dict[str, Any]:
    found: dict[str, Any] = client.read(f"/api/v1/sandboxes/{sandbox_id}/logs", **query)
    return found


def lines_of(logs: dict[str, Any]) -> list[str]:
    return without_requests(line["text"] for log in logs["containers"] for line in log["lines"])


def without_requests(lines: Iterable[str]) -> list[str]:
    """Leave out what the tiny server prints for each request: a probe of the worker may come at any time."""
    return [line for line in lines if not line.startswith(("GET /", "POST /"))]


def print_in_container(engine: PrivateEngine, sandbox_id: str, script: str) -> None:
    engine.docker("exec", container_name(sandbox_id), "sh", "-c", f"( {script} ) >/proc/1/fd/1")


@pytest.fixture
def cli(service: Deployment, alice: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command `sandboxes logs`, on the machine of the service and with the key of Alice."""
    own = {"AGENT_WORKSPACE_URL": service.url, "AGENT_WORKSPACE_KEY": alice.user.key}
    for name, value in (service.environment | own).items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["sandboxes", "logs", *arguments])
        return Result(int(ended.value.code or 0), *capsys.readouterr())

    return run


def test_log_of_a_sandbox_that_crashes_at_its_start_is_kept(alice: Client, cli: Cli) -> None:
    sandbox_id = alice.start_sandbox(BROKEN_IMAGE)
    alice.await_sandbox(sandbox_id, "ERROR")
    logs = logs_of(alice, sandbox_id)
    assert (logs["is_live"], [log["cause"] for log in logs["containers"]]) == (True, ["exited"])
    assert lines_of(logs)
    assert lines_of(logs)[-1] in str((alice.sandbox(sandbox_id) or {})["detail"])
    for options in ((), ("--local",), ("--tail", "1000")):
        printed = cli(sandbox_id, *options)
        assert (printed.status, printed.out.splitlines()) == (0, lines_of(logs))


def test_log_is_live_and_outlives_the_sandbox_without_its_secrets(
    alice: Client, service: Deployment, engine: PrivateEngine, cli: Cli
) -> None:
    sandbox_id = alice.start_sandbox()
    alice.await_sandbox(sandbox_id, "RUNNING")
    first = logs_of(alice, sandbox_id)
    assert (first["is_live"], first["is_deleted"], len(lines_of(first)) > 0) == (True, False, True)
    key = session_key_of(stored_row(service.database, Sandbox, sandbox_id))
    print_in_container(
        engine,
        sandbox_id,
        f"echo {SECRET}; echo {key}; head -c {PART - 5} /dev/zero | tr '\\0' x; echo {SECRET}; echo end",
    )
    eventually(lambda: lines_of(logs_of(alice, sandbox_id))[-1] == "end")
    later = logs_of(alice, sandbox_id, after=first["cursor"])
    assert lines_of(later) == ["******", "******", "x" * (PART - 5) + "******", "end"]
    deleted = alice.delete(f"/api/v1/sandboxes/{sandbox_id}", params={"wait": 60})
    assert deleted.headers["Operation-Settled"] == "true"
    kept = logs_of(alice, sandbox_id)
    assert (kept["is_live"], kept["is_deleted"], kept["containers"][0]["cause"]) == (False, True, "removed")
    assert lines_of(kept)[: len(lines_of(first))] == lines_of(first)
    assert "end" in lines_of(kept)
    with service.user("bob") as bob:
        assert bob.get(f"/api/v1/sandboxes/{sandbox_id}/logs").status_code == 404
    printed = cli(sandbox_id, "--follow")
    assert (printed.status, without_requests(printed.out.splitlines())) == (0, lines_of(kept))
    assert "the sandbox is deleted" in printed.err
    shown = repr(kept) + printed.out
    assert SECRET not in shown
    assert key not in shown


def test_large_log_delays_nothing(alice: Client, engine: PrivateEngine) -> None:
    sandbox_id = alice.start_sandbox()
    alice.await_sandbox(sandbox_id, "RUNNING")
    print_in_container(
        engine, sandbox_id, "yes 01234567890123456789012345678901234567890123456789 | head -c 100000000; echo; echo end"
    )
    eventually(lambda: lines_of(logs_of(alice, sandbox_id))[-1:] == ["end"])
    print_in_container(engine, sandbox_id, "head -c 20000000 /dev/zero | tr '\\0' x")
    began = time.monotonic()
    deleted = alice.delete(f"/api/v1/sandboxes/{sandbox_id}", params={"wait": 60})
    assert deleted.headers["Operation-Settled"] == "true"
    assert time.monotonic() - began < 20
    [log] = logs_of(alice, sandbox_id)["containers"]
    assert log["is_cut"]
    assert sum(len(line["text"]) for line in log["lines"]) <= MAX_BYTES


def test_worker_that_is_down_is_reported(alice: Client, service: Deployment) -> None:
    sandbox_id = alice.start_sandbox()
    alice.await_sandbox(sandbox_id, "RUNNING")
    live = logs_of(alice, sandbox_id)
    service.kill("worker")
    time_of = live["containers"][0]["read_at"]
    eventually(lambda: not logs_of(alice, sandbox_id)["is_live"])
    kept = logs_of(alice, sandbox_id)
    assert (lines_of(kept), kept["containers"][0]["read_at"]) == (lines_of(live), time_of)

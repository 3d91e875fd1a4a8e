"""The health check of an API process accepts responses of that process only, and none of the other processes."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from deploy.service import health
from tests.services.directories import REPOSITORY
from tests.waiting import eventually

OLD = 1000.0
OWN = 0.5
TICK = 0.01


@pytest.fixture
def uptimes() -> list[float]:
    """The responses of the processes behind the port, in turn; the last one is repeated."""
    return [OLD, OLD, OWN]


@pytest.fixture
def port(uptimes: list[float]) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_info = self.path == "/server_info"
            uptime = uptimes.pop(0) if is_info and len(uptimes) > 1 else uptimes[0]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"uptime": uptime}).encode())

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_check_waits_for_the_process_s_own_response(port: int, uptimes: list[float]) -> None:
    assert health.responds(f"http://127.0.0.1:{port}", 10.0, seconds=5)
    assert uptimes == [OWN]


def test_responses_of_older_processes_do_not_count(port: int, uptimes: list[float]) -> None:
    uptimes[:] = [OLD]
    assert not health.responds(f"http://127.0.0.1:{port}", 10.0, seconds=0.3)


def test_age_of_a_process_is_measured() -> None:
    began = time.monotonic()
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            eventually(lambda: health.age_of(str(process.pid)) > 0.1)
            assert health.age_of(str(process.pid)) < time.monotonic() - began + TICK
        finally:
            process.kill()


@pytest.fixture
def unready(port: int, uptimes: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """An API process, here the parent of this one, whose database does not respond."""
    uptimes[:] = [OWN]
    for name, value in (("AW_HOST", "127.0.0.1"), ("AW_PORT", str(port)), ("MAINPID", str(os.getppid()))):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(health, "is_ready", lambda *_: False)


@pytest.mark.usefixtures("unready")
def test_process_that_was_never_ready_is_not_healthy(tmp_path: Path) -> None:
    file = tmp_path / "ready"
    assert not health.main([str(file)])
    assert not file.exists()


@pytest.mark.usefixtures("unready")
def test_process_that_was_ready_stays_healthy_without_its_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ready"
    with monkeypatch.context() as with_database:
        with_database.setattr(health, "is_ready", lambda *_: True)
        assert health.main([str(file)])
    assert health.main([str(file)])
    assert not health.main([])


@pytest.mark.usefixtures("unready")
def test_process_is_healthy_without_its_database_if_requested() -> None:
    assert health.main(["--without-database"])
    assert not health.main([])


def test_check_of_a_unit_is_about_its_main_process(port: int, uptimes: list[float]) -> None:
    uptimes[:] = [OWN]
    own = {"AW_HOST": "127.0.0.1", "AW_PORT": str(port), "MAINPID": str(os.getppid())}
    command = [sys.executable, "-m", "deploy.service.health"]
    done = subprocess.run(command, env=os.environ | own, cwd=REPOSITORY, check=False, timeout=60)
    assert done.returncode == 0

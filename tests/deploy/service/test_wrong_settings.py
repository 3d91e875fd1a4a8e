"""A wrong setting, or a port that is taken, ends a process with the name of its variable, in one line."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from shared.crypto import new_secret_key
from shared.db.migrations import migrate
from tests.services.directories import REPOSITORY
from tests.services.interpreters import Interpreters

# The names of processes in their own errors.
PROCESSES = {"api": "web", "worker": "worker"}


@pytest.mark.parametrize(
    ("module", "variable"),
    [
        ("api", "AW_PORT"),
        ("deploy.service.node_address", "AW_PORT"),
        ("deploy.service.node_address", "AW_DATABASE_WAIT_SECONDS"),
        ("worker", "AW_DATABASE_URL"),
        ("worker", "AW_CONCURRENCY"),
        ("deploy.door", "AW_PORT"),
        ("deploy.engine_filter", "AW_DOOR_PORT"),
        ("deploy.egress_proxy", "AW_EGRESS_PORT"),
    ],
)
def test_process_names_the_variable_of_a_wrong_setting(
    interpreters: Interpreters, tmp_path: Path, module: str, variable: str
) -> None:
    error = fail(interpreters, tmp_path, module, **{variable: "hush"})
    assert (f"wrong settings: {variable}: " in error, "hush" in error) == (True, False)


def test_process_names_a_file_of_settings_that_is_not_text(interpreters: Interpreters, tmp_path: Path) -> None:
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "env").write_bytes(b"AW_WEB_URL=http://h\xfcsh.test\n")
    error = fail(interpreters, tmp_path, "deploy.door")
    assert "wrong settings: " in error
    assert "it is not text in UTF-8: 'var/env'" in error


@pytest.mark.parametrize(("module", "variable"), [("api", "AW_PORT"), ("deploy.service.flower", "AW_FLOWER_PORT")])
def test_process_names_a_port_that_is_taken(
    interpreters: Interpreters, tmp_path: Path, module: str, variable: str
) -> None:
    (tmp_path / "var").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        error = fail(interpreters, tmp_path, module, **{variable: port, "AW_SECRET_KEYS": new_secret_key()})
    assert all(word in error for word in (variable, port, "Address already in use"))


@pytest.mark.parametrize("module", ["api", "worker"])
def test_process_names_a_certificate_authority_that_is_missing(tmp_path: Path, module: str) -> None:
    """In new interpreters, which import the processes' modules in their own order."""
    migrate(f"sqlite:///{tmp_path / 'store.db'}")
    variables = {
        "PYTHONPATH": str(REPOSITORY),
        "AW_DATABASE_URL": f"sqlite:///{tmp_path / 'store.db'}",
        "AW_SECRET_KEYS": new_secret_key(),
        "AW_DOCKER_HOST": "unix:///none.sock",
        "AW_DOOR_CA": "/none.pem",
    }
    done = subprocess.run(
        [sys.executable, "-m", module],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert line_of(done) == f"{PROCESSES[module]}: AW_DOOR_CA, /none.pem, can't be used: No such file or directory\n"


def fail(interpreters: Interpreters, folder: Path, module: str, **variables: str) -> str:
    """Run a process that ends with one line, and return that."""
    environment = {"PYTHONPATH": str(REPOSITORY), **variables}
    return line_of(interpreters.run("-m", module, "worker", cwd=folder, env=environment))


def line_of(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    return done.stderr

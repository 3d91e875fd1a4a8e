"""A second start in one folder, and an interrupted start."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.service.errors import ServiceError
from deploy.service.folder import hold_folder
from shared.settings import Settings
from tests.services.directories import REPOSITORY
from tests.services.interpreters import Interpreter, Interpreters
from tests.waiting import eventually

SLOW_IMPORT = 'import time\nprint("importing", flush=True)\ntime.sleep(600)\n'
SLOW_STEP = """\
from deploy.service import __main__, start
start.main = lambda _: start._run("sh", "-c", "echo $$; sleep 600 & echo $!; wait")
__main__.run([])
"""


def files_in(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def test_second_start_reports_the_first_and_exits(folder: Path) -> None:
    (folder / "Procfile").write_text((REPOSITORY / "Procfile").read_text())
    var = folder / "var"
    with hold_folder(Settings(var_dir=var, port=3456)):
        before = files_in(var)
        done = subprocess.run(
            [sys.executable, "-m", "deploy.service"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY), "AW_VAR_DIR": str(var), "AW_PORT": "4567"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert files_in(var) == before
    assert (done.returncode, done.stdout) == (1, "")
    assert "already running" in done.stderr
    assert f"http://127.0.0.1:3456, process {os.getpid()}" in done.stderr
    assert "Traceback" not in done.stderr


def test_start_with_a_wrong_setting_names_its_variable(folder: Path, interpreters: Interpreters) -> None:
    process, log = fork(interpreters, folder, "-m", "deploy.service", AW_PORT="hush")
    assert process.wait(60) == 1
    text = log.read_text()
    assert text.startswith("wrong settings, nothing was started: AW_PORT: ")
    assert (text.count("\n"), "hush" in text, (folder / "var").exists()) == (1, False, False)


@pytest.mark.parametrize("module", ["deploy.service", "deploy.service.restart"])
def test_folder_that_cannot_be_used_is_one_line(folder: Path, interpreters: Interpreters, module: str) -> None:
    """Also for root, who may enter every folder: the name is too long."""
    name = "n" * 300
    process, log = fork(interpreters, folder, "-m", module, AW_VAR_DIR=str(folder / name))
    assert process.wait(60) == 1
    text = log.read_text()
    assert (text.count("\n"), name in text, "Traceback" in text) == (1, True, False)


def test_path_that_is_too_long_for_a_socket_is_refused(folder: Path, interpreters: Interpreters) -> None:
    """The supervisor's own error would not say what to do."""
    var = folder / ("v" * max(1, 90 - len(str(folder))))
    (folder / "Procfile").write_text((REPOSITORY / "Procfile").read_text())
    process, log = fork(interpreters, folder, "-m", "deploy.service", AW_VAR_DIR=str(var))
    assert process.wait(60) == 1
    [line] = log.read_text().splitlines()
    assert "set AW_VAR_DIR to a shorter path" in line
    assert "explain the-path-is-too-long-for-a-socket" in line
    assert not var.exists()


def test_folder_is_free_after_the_service_has_ended(tmp_path: Path) -> None:
    settings = Settings(var_dir=tmp_path / "var")
    for _ in range(2):
        with hold_folder(settings), pytest.raises(ServiceError, match="already running"), hold_folder(settings):
            pass
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "var", tmp_path / "var" / "run")] == [0o700] * 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_start_interrupted_during_imports_has_no_traceback(folder: Path, number: signal.Signals) -> None:
    (folder / "shared").mkdir()
    (folder / "shared" / "__init__.py").touch()
    (folder / "shared" / "settings.py").write_text(SLOW_IMPORT)
    log = folder / "log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "deploy.service"],
            cwd=folder,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    eventually(lambda: "importing\n" in log.read_text())
    process.send_signal(number)
    assert process.wait(30) == 128 + number
    assert log.read_text() == "importing\n"


def test_start_interrupted_during_a_command_ends_the_command(folder: Path, interpreters: Interpreters) -> None:
    process, log = fork(interpreters, folder, "-c", SLOW_STEP)
    eventually(lambda: len(log.read_text().split()) == 2)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 128 + signal.SIGINT
    first, second = log.read_text().split()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in (first, second)))


def fork(interpreters: Interpreters, folder: Path, *arguments: str, **environment: str) -> tuple[Interpreter, Path]:
    log = folder / "log"
    environment["PYTHONPATH"] = str(REPOSITORY)
    with log.open("a") as output:
        return interpreters.start(*arguments, cwd=folder, env=os.environ | environment, stdout=output), log

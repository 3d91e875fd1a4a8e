"""Programs that a process of the service becomes."""

import os
import pwd
import subprocess
import sys

import pytest

from deploy.door import __main__ as door
from deploy.service import programs
from tests.services.directories import REPOSITORY

BECOME = """
import os, sys
from deploy.service.programs import become, in_memory
file = in_memory("test", "text")
os.set_inheritable(file, True)
become(["sh", "-c", f"env; pwd; cat /dev/fd/{file}"])
"""

PROGRAMS = ("deploy.door.__main__", "deploy.egress_proxy.__main__")


def test_program_inherits_a_file_and_no_secret() -> None:
    environment = os.environ | {"AW_SECRET_KEYS": "secret", "AW_DATABASE_URL": "secret", "OTHER": "secret"}
    done = subprocess.run([sys.executable, "-c", BECOME], env=environment, capture_output=True, text=True, check=True)
    *variables, folder, text = done.stdout.splitlines()
    assert (folder, text) == ("/", "text")
    assert {line.partition("=")[0] for line in variables} - {"PWD", "_", "SHLVL", "OLDPWD"} == {"PATH", "LC_ALL"}
    assert "secret" not in done.stdout


def test_python_of_official_images_is_found_after_debians() -> None:
    folders = programs.PATH.split(":")
    assert folders.index("/usr/bin") < folders.index("/usr/local/bin")


def test_door_and_egress_proxy_import_no_database() -> None:
    """Every node starts both, and the imports would take most of the time."""
    code = (
        f"import sys, {', '.join(PROGRAMS)}; print([name for name in ('sqlalchemy', 'psycopg') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.fixture
def _without_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is root's, and there is no other user."""

    def find(name: str) -> pwd.struct_passwd:
        raise KeyError(name)

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(pwd, "getpwnam", find)


@pytest.mark.usefixtures("_without_user")
def test_user_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match="the user aw-none does not exist: create it with deploy/users"):
        programs.as_user("aw-none")


@pytest.mark.usefixtures("_without_user")
def test_door_is_not_run_as_root_where_it_has_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_OWN_USERS", "1")
    with pytest.raises(SystemExit, match="the user aw-door does not exist"):
        door._identity()


@pytest.mark.usefixtures("_without_user")
def test_door_that_runs_as_root_prints_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AW_OWN_USERS", "0")
    assert door._identity() == []
    assert "the door runs as root" in capsys.readouterr().err


def test_process_without_root_keeps_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert programs.as_user("aw-none") == []

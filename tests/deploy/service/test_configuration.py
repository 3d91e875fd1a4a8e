"""The supervisor's configuration."""

import shlex
import sys
from configparser import RawConfigParser
from pathlib import Path

import pytest

from deploy.service.configuration import LAUNCH, write_configuration
from deploy.service.processes import Process

FOUR = [Process("broker", 1), Process("web", 2), Process("worker", 3), Process("flower", 1)]


@pytest.fixture
def written(tmp_path: Path) -> RawConfigParser:
    parser = RawConfigParser()
    with write_configuration(FOUR, tmp_path / "var").open() as file:
        parser.read_file(file)
    return parser


def test_every_process_is_a_program_with_its_number(written: RawConfigParser) -> None:
    counts = {name: written.getint(f"program:{name}", "numprocs") for name in ("broker", "web", "worker", "flower")}
    assert counts == {"broker": 1, "web": 2, "worker": 3, "flower": 1}
    assert set(written.sections()) == {
        "supervisord",
        "unix_http_server",
        "rpcinterface:supervisor",
        *(f"program:{name}" for name in [*counts, "ready"]),
    }
    for name in counts:
        assert written.get(f"program:{name}", "command").startswith(f"{LAUNCH} {name} %(process_num)d ")
        assert written.getboolean(f"program:{name}", "autorestart")
        assert written.getboolean(f"program:{name}", "stopasgroup")


def test_processes_of_root_run_as_users_of_their_own(tmp_path: Path) -> None:
    parser = RawConfigParser()
    processes = [*FOUR, Process("engine-filter", 1)]
    with write_configuration(processes, tmp_path / "var", own_users=True).open() as file:
        parser.read_file(file)
    variables = {
        process.name: parser.get(f"program:{process.name}", "environment", fallback="") for process in processes
    }
    assert variables == {
        "broker": 'RUN_AS="aw-api"',
        "web": 'RUN_AS="aw-api"',
        "flower": 'RUN_AS="aw-api"',
        "worker": f'RUN_AS="aw-worker",AW_DOCKER_HOST="unix://{tmp_path}/var/run/engine.sock"',
        "engine-filter": "",
    }
    assert parser.get("program:web", "umask") == "007"


def test_broker_starts_first_and_stops_last(written: RawConfigParser) -> None:
    priorities = {name: written.getint(f"program:{name}", "priority") for name in ("broker", "worker", "flower", "web")}
    assert list(priorities) == sorted(priorities, key=lambda name: priorities[name])


def test_workers_have_more_time_to_stop(written: RawConfigParser) -> None:
    stop_wait = {name: written.getint(f"program:{name}", "stopwaitsecs") for name in ("worker", "web")}
    assert stop_wait["worker"] > stop_wait["web"]


def test_banner_is_printed_on_the_first_start_only(written: RawConfigParser) -> None:
    assert not written.getboolean("program:ready", "autorestart")
    assert written.getint("program:ready", "startretries") == 0
    assert written.get("program:ready", "command").endswith("print_address worker")


def test_banner_is_printed_from_a_folder_with_a_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = str(tmp_path / "my project" / "python")
    monkeypatch.setattr(sys, "executable", python)
    parser = RawConfigParser()
    with write_configuration(FOUR, tmp_path / "var").open() as file:
        parser.read_file(file)
    assert shlex.split(parser.get("program:ready", "command"))[0] == python


def test_machine_without_an_api_does_not_wait_for_one(tmp_path: Path) -> None:
    parser = RawConfigParser()
    with write_configuration([Process("worker", 1), Process("door", 1)], tmp_path / "var").open() as file:
        parser.read_file(file)
    assert "program:worker" in parser
    assert "program:ready" not in parser


@pytest.mark.usefixtures("written")
def test_var_directory_is_private(tmp_path: Path) -> None:
    var = tmp_path / "var"
    assert [path.stat().st_mode & 0o777 for path in (var, var / "run", var / "log")] == [0o700] * 3

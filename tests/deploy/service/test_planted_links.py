"""Root's commands follow no link that the service's users have put in the place of the database (decision 58)."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.services.directories import REPOSITORY, short_directory
from tests.services.interpreters import Interpreters, interpreters
from tests.services.own_users import launcher

# Runs commands, and prints their exit statuses. `hand-over` and `filter` are what root does beside them.
PROGRAM = """
import json, sys
from deploy.engine_filter.__main__ import make_policy
from deploy.service.owners import assign_files
from shared.cli.app import main
from shared.settings import Settings
from worker.settings import WorkerSettings

ACTIONS = {"hand-over": lambda: assign_files(Settings()), "filter": lambda: make_policy(Settings(), WorkerSettings())}

def status(arguments):
    try:
        ACTIONS.get(arguments[0], lambda: main(arguments))()
    except SystemExit as end:
        return end.code or 0
    except Exception as error:
        return repr(error)
    return 0

found = [status(arguments) for arguments in json.loads(sys.argv[1])]
print(json.dumps(found), file=sys.stderr)
"""
IMPORTED_BEFOREHAND = (
    "deploy.engine_filter.__main__",
    "deploy.service.owners",
    "shared.cli.app",
    "shared.cli.backup.commands",
    "shared.cli.local.database",
    "shared.cli.local.service",
    "shared.cli.local.users",
)
MIGRATE, BOOTSTRAP, LIST, HAND_OVER, FILTER = ["migrate"], ["bootstrap"], ["users", "list"], ["hand-over"], ["filter"]

Root = Callable[..., tuple[list[int], str]]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that the service's users may enter, but not write to."""
    with short_directory("links") as place:
        place.chmod(0o755)
        yield place


@pytest.fixture(scope="module")
def machine() -> Iterator[Interpreters]:
    """The interpreters of a machine that has the service's users."""
    with short_directory("users") as stage, short_directory("server") as directory:
        stage.chmod(0o755)
        with interpreters(directory, IMPORTED_BEFOREHAND, launcher(stage)) as started:
            yield started


@pytest.fixture
def root(place: Path, machine: Interpreters) -> Root:
    """Run commands as root on that machine; return their statuses and output."""
    variables = {"AW_VAR_DIR": str(place / "var"), "AW_DATABASE_WAIT_SECONDS": "0", "AW_NETWORK_ISOLATION": "on"}

    def run(*commands: Sequence[str]) -> tuple[list[int], str]:
        environment = os.environ | variables
        done = machine.run("-c", PROGRAM, json.dumps(commands), cwd=REPOSITORY, env=environment)
        done.check_returncode()
        return json.loads(done.stderr.splitlines()[-1]), done.stdout

    return run


@pytest.fixture
def database(place: Path, root: Root) -> Path:
    """The database of an installation whose processes run as users of their own."""
    (place / "var" / "run").mkdir(parents=True)
    assert root(MIGRATE, BOOTSTRAP, HAND_OVER)[0] == [0, 0, 0]
    return place / "var" / "db" / "agent-workspace.db"


@pytest.mark.parametrize("exists", [False, True])
def test_root_follows_no_planted_link(database: Path, root: Root, place: Path, *, exists: bool) -> None:
    target = place / "file-of-root"
    if exists:
        target.touch(mode=0o600)
    database.unlink()
    database.symlink_to(target)
    backup = ["db", "backup", str(place / "backup"), "--without-keys"]
    statuses, _ = root(MIGRATE, BOOTSTRAP, LIST, backup, FILTER)
    assert 0 not in statuses
    assert target.exists() == exists
    assert not exists or target.read_bytes() == b""


def test_root_s_commands_work_with_the_database_of_other_users(database: Path, root: Root, place: Path) -> None:
    owner = database.stat().st_uid
    (place / "var" / "metrics.key").unlink()
    backup = ["db", "backup", str(place / "backup"), "--without-keys"]
    statuses, output = root(MIGRATE, BOOTSTRAP, ["users", "create", "bob"], LIST, backup, FILTER)
    assert (statuses, "\tbob\t" in output) == ([0] * 6, True)
    assert (place / "var" / "metrics.key").stat().st_mode & 0o777 == 0o640
    assert owner != 0
    assert {path.stat().st_uid for path in database.parent.iterdir()} == {owner}


def test_first_user_s_key_belongs_to_root(database: Path, root: Root, place: Path) -> None:
    """An operator has removed the database, but not the folder of the service's users."""
    key = place / "var" / "admin.key"
    key.unlink()
    database.unlink()
    assert root(MIGRATE, BOOTSTRAP)[0] == [0, 0]
    assert (key.stat().st_uid, key.stat().st_mode & 0o777) == (0, 0o600)
    assert database.stat().st_uid != 0

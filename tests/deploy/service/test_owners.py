"""Separate users for processes: the move of SQLite's file, and the reasons to run as root."""

import grp
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from deploy.service import owners
from deploy.service.errors import ServiceError
from shared.settings import Settings


@pytest.fixture
def var(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("shutil.chown", lambda *_: None)  # this machine may not have the users
    (tmp_path / "db").mkdir()
    return tmp_path


def move(var: Path) -> None:
    owners._move_database(var / owners.DATABASE, var / "db" / owners.DATABASE)


def write(path: Path, row: int) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE IF NOT EXISTS t (n)")
        connection.execute("INSERT INTO t VALUES (?)", (row,))


def read(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        return [row for (row,) in connection.execute("SELECT n FROM t")]


def test_database_is_moved_once_and_found_at_its_path(var: Path) -> None:
    path = var / owners.DATABASE
    write(path, 1)
    for _ in range(2):
        move(var)
    write(path, 2)
    assert read(path) == read(var / "db" / owners.DATABASE) == [1, 2]
    assert path.is_symlink()
    assert sorted(each.name for each in var.iterdir()) == [owners.DATABASE, "db"]
    assert (var / "db" / owners.DATABASE).stat().st_mode & 0o777 == 0o660


def test_log_of_a_killed_process_is_moved(var: Path) -> None:
    path = var / owners.DATABASE
    write(path, 1)
    child = os.fork()
    if child == 0:
        connection = sqlite3.connect(path)
        connection.execute("INSERT INTO t VALUES (2)")
        connection.commit()
        os._exit(0)  # without closing the database
    os.waitpid(child, 0)
    assert path.with_name(f"{path.name}-wal").stat().st_size > 0
    move(var)
    assert read(path) == [1, 2]


def test_database_put_in_place_of_the_link_is_the_database(var: Path) -> None:
    path, moved = var / owners.DATABASE, var / "db" / owners.DATABASE
    write(path, 1)
    move(var)
    moved.with_name(f"{moved.name}-wal").write_bytes(b"of the file before")
    path.unlink()
    write(path, 3)
    move(var)
    assert read(path) == [3]


def test_database_behind_a_link_that_was_moved_away_is_kept(
    var: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After `mv` of the link, the only copy of the database is where the next database goes."""
    path = var / owners.DATABASE
    write(path, 1)
    move(var)
    child = os.fork()
    if child == 0:
        connection = sqlite3.connect(path)
        connection.execute("INSERT INTO t VALUES (2)")
        connection.commit()
        os._exit(0)  # the row is in the write-ahead log only
    os.waitpid(child, 0)
    path.rename(tmp_path / "moved")
    write(path, 3)
    move(var)
    assert read(path) == [3]
    [kept] = [each for each in (var / "db").glob("*.before-*") if not each.name.endswith(("-wal", "-shm"))]
    assert read(kept) == [1, 2]
    assert str(kept) in capsys.readouterr().err


def test_move_that_a_crash_has_interrupted_is_finished(var: Path) -> None:
    path = var / owners.DATABASE
    write(path, 1)
    (var / "db" / owners.DATABASE).hardlink_to(path)
    move(var)
    assert (read(path), path.is_symlink()) == ([1], True)
    assert [each.name for each in (var / "db").iterdir()] == [owners.DATABASE]


def test_database_in_use_is_not_moved(var: Path) -> None:
    path = var / owners.DATABASE
    write(path, 1)
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("SELECT * FROM t").fetchall()
        with pytest.raises(ServiceError, match="another program uses it"):
            move(var)
    assert not path.is_symlink()
    move(var)
    assert read(path) == [1]


def test_ownership_of_files_changes_but_not_of_link_targets(tmp_path: Path) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    (folder / "inner").mkdir(parents=True)
    for path in (outside, tmp_path / "linked", folder / "file", folder / "inner" / "file"):
        path.touch(mode=0o600)
    (folder / "link").symlink_to(outside)
    (folder / "hard-link").hardlink_to(tmp_path / "linked")
    os.mkfifo(folder / "pipe", mode=0o600)
    owners.assign_folder(folder, os.getuid(), os.getgid(), 0o750)
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    handed_over = {"folder": 0o750, "folder/inner": 0o750, "folder/file": 0o660, "folder/inner/file": 0o660}
    kept = dict.fromkeys(("outside", "linked", "folder/link", "folder/hard-link", "folder/pipe"), 0o600)
    assert modes == handed_over | kept


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("AW_DATABASE_URL", "sqlite:////elsewhere/file.db", "AW_DATABASE_URL names a file"),
        ("AW_DOCKER_HOST", "tcp://engine.example:2376", "AW_DOCKER_HOST is not a socket"),
        ("AW_VAR_DIR", "closed/var", "other users may not enter"),
        ("AW_VAR_DIR", "closed/new/var", "other users may not enter"),
    ],
)
def test_processes_run_as_root_where_other_users_cannot(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("AW_OWN_USERS", "1")
    monkeypatch.setenv(variable, value)
    assert not owners.has_own_users(Settings())
    assert f"warning: all processes run as root, because {words}" in capsys.readouterr().err


def test_folder_of_a_group_without_a_name_is_not_the_service_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example one that was copied from another machine, by numbers."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("pathlib.Path.group", lambda _: grp.getgrgid(2**31)[0])
    assert not owners.has_assigned_files(Settings(var_dir=tmp_path))


def test_processes_of_others_than_root_run_as_these(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_OWN_USERS", "1")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not owners.has_own_users(Settings())
    monkeypatch.setenv("AW_OWN_USERS", "0")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert not owners.has_own_users(Settings())


def test_python_in_a_private_folder_of_root_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.symlink_to("/usr/bin/true")
    tmp_path.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(python))
    # Users that every machine has.
    for name, known in (("API", "daemon"), ("WORKER", "bin"), ("GROUP", "nogroup")):
        monkeypatch.setattr(owners, name, known)
    assert "may not read" in owners._find_obstacle(Settings(var_dir=Path("/var")))

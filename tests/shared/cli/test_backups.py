"""`agent-workspace db backup | restore`, as an operator uses them."""

import os
from pathlib import Path

import pytest

from shared.backup import keys, manifest
from shared.crypto import new_secret_key
from shared.db.database import Database
from shared.errors import Invalid, NotFound
from tests.shared.cli.results import Cli, assert_complains, owner
from worker.backup import __main__ as node_files

PASSPHRASE = "correct horse battery"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_backup_is_restored_into_another_installation(
    migrated: Cli, var: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "COST", {"n": 2, "r": 8, "p": 1})
    assert migrated("bootstrap").status == 0
    (tmp_path / "passphrase").write_text(f"{PASSPHRASE}\n")
    arguments = (str(tmp_path / "backup"), "--passphrase-file", str(tmp_path / "passphrase"))
    made = migrated("db", "backup", *arguments)
    assert made.out.startswith("backed up the sqlite database, schema 00"), made
    assert ("with its keys, encrypted" in made.out, made.err) == (True, "")
    assert_complains(migrated("db", "backup", *arguments), "is not empty")
    assert_complains(migrated("db", "restore", *arguments), "is not empty", "nothing was changed")

    clean = tmp_path / "clean"
    monkeypatch.setenv("AW_VAR_DIR", str(clean))
    monkeypatch.setenv("AW_DATABASE_URL", "")
    restored = migrated("db", "restore", *arguments)
    assert restored.status == 0, restored
    assert "nodes restore" in restored.out
    database = Database(f"sqlite:///{clean / 'agent-workspace.db'}")
    try:
        assert owner(database, clean, (clean / "admin.key").read_text().strip()) == "admin"
    finally:
        database.close()
    assert (clean / "secret.key").read_text() == (var / "secret.key").read_text()


def test_backup_without_the_secret_key_names_its_entry(migrated: Cli, var: Path, tmp_path: Path) -> None:
    (var / "secret.key").unlink()
    response = migrated("db", "backup", str(tmp_path / "backup"), "--without-keys")
    assert_complains(response, f"AW_SECRET_KEYS, or {var / 'secret.key'}", "explain the-secret-key-is-gone")


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_passphrase_file_equals_the_typed_passphrase(
    migrated: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(keys, "COST", {"n": 2, "r": 8, "p": 1})
    typed = f" {PASSPHRASE}\t"
    (tmp_path / "passphrase").write_bytes((typed + end).encode())
    made = migrated("db", "backup", str(tmp_path / "backup"), "--passphrase-file", str(tmp_path / "passphrase"))
    assert made.status == 0, made
    locked = (tmp_path / "backup" / manifest.KEYS).read_text()
    assert "secret.key" in keys.unlock(locked, typed)
    with pytest.raises(Invalid, match="does not decrypt"):
        keys.unlock(locked, PASSPHRASE)


def test_backup_whose_passphrase_was_read_without_its_white_space_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "COST", {"n": 2, "r": 8, "p": 1})
    assert keys.unlock(keys.lock({"a": "b"}, PASSPHRASE), f" {PASSPHRASE}\t") == {"a": "b"}


def test_backup_names_the_keys_that_are_not_in_it(
    migrated: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command may use another var directory than the service does."""
    monkeypatch.setattr(keys, "COST", {"n": 2, "r": 8, "p": 1})
    monkeypatch.setenv("AW_SECRET_KEYS", new_secret_key())
    monkeypatch.setenv("AW_VAR_DIR", str(tmp_path / "elsewhere"))
    (tmp_path / "passphrase").write_text(PASSPHRASE)
    made = migrated("db", "backup", str(tmp_path / "backup"), "--passphrase-file", str(tmp_path / "passphrase"))
    assert made.status == 0, made
    for name in ("admin.key", "metrics.key"):
        assert f"not in the backup: {tmp_path / 'elsewhere' / name} does not exist" in made.err
    assert made.err.count("AW_VAR_DIR") == 2


def test_backup_without_a_terminal_needs_a_decision_about_keys(migrated: Cli, tmp_path: Path) -> None:
    assert_complains(migrated("db", "backup", str(tmp_path / "backup")), "--passphrase-file", "--without-keys")
    made = migrated("db", "backup", str(tmp_path / "backup"), "--without-keys")
    assert "without keys: keep the secret key elsewhere" in made.out


def test_node_backup_needs_root_beside_the_engine(
    migrated: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AW_DOCKER_HOST", "tcp://engine.test:2376")
    assert migrated("nodes", "backup", str(tmp_path / "files")).status == 1
    assert not (tmp_path / "files").exists()


@pytest.mark.usefixtures("migrated")
def test_node_backup_needs_a_node_that_the_database_knows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty backup would look like a real one."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("AW_DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv("AW_NODE", "typo")
    for action in ("backup", "restore"):
        with pytest.raises(NotFound, match="no node with id 'typo'"):
            node_files.main(action, str(tmp_path / "files"))
    assert not (tmp_path / "files").exists()


@pytest.mark.parametrize(
    ("url", "complaint"), [("sqlite:///none.db", "no database at"), ("postgresql://u:hush@127.0.0.1:1/d", "refused")]
)
def test_node_backup_without_a_database_is_one_line(
    url: str, complaint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("AW_DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv("AW_DATABASE_URL", url)
    for action in ("backup", "restore"):
        with pytest.raises(SystemExit) as ended:
            node_files.run([action, str(tmp_path / "files")])
        err = capsys.readouterr().err
        assert (ended.value.code, err.count("\n"), complaint in err, "hush" in err) == (1, 1, True, False), err
    assert list(tmp_path.iterdir()) == []


def test_node_backup_runs_no_module_of_the_current_folder(
    migrated: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AW_DOCKER_HOST", "tcp://engine.test:2376")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    (tmp_path / "worker").mkdir()
    (tmp_path / "worker" / "__init__.py").write_text("open('taken', 'w')")
    monkeypatch.chdir(tmp_path)
    assert migrated("nodes", "backup", str(tmp_path / "files")).status == 1
    assert not (tmp_path / "taken").exists()

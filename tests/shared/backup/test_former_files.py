"""What an operator moved away, or left in the way of a restore, is never destroyed."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import SecretStr

from shared.backup import store
from shared.errors import Conflict
from shared.settings import Settings
from tests.factories import SECRET_KEY

PASSPHRASE = "correct horse battery"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_refusal_names_the_file_behind_a_link(settings: Settings, tmp_path: Path) -> None:
    store.back_up(settings, tmp_path / "backup", None)
    file, link = Path(settings.database.removeprefix("sqlite:///")), tmp_path / "link.db"
    link.symlink_to(file)
    linked = Settings(var_dir=settings.var_dir, database_url=f"sqlite:///{link}", secret_keys=SecretStr(SECRET_KEY))
    with pytest.raises(Conflict) as refusal:
        store.restore(linked, tmp_path / "backup", None)
    assert str(refusal.value).startswith(f"{file.resolve()} is not empty: stop the service, and move it away, with ")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_log_of_a_database_that_was_moved_away_is_kept(settings: Settings, clean: Settings, tmp_path: Path) -> None:
    """After a crash, the log has the last transactions."""
    store.back_up(settings, tmp_path / "backup", PASSPHRASE)
    file = Path(clean.database.removeprefix("sqlite:///"))
    child = os.fork()
    if child == 0:
        connection = sqlite3.connect(file, isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE t AS SELECT 1")
        os._exit(0)  # without closing the database
    os.waitpid(child, 0)
    file.rename(tmp_path / "moved.db")
    store.restore(clean, tmp_path / "backup", PASSPHRASE)
    [log] = file.parent.glob(f"{file.name}.before-*-wal")
    log.rename(tmp_path / "moved.db-wal")
    with closing(sqlite3.connect(tmp_path / "moved.db")) as moved:
        assert moved.execute("SELECT * FROM t").fetchall() == [(1,)]

"""Backup of a damaged SQLite database, and restore over an empty one that has a log."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from shared.backup import store
from shared.db.database import Database
from shared.errors import Invalid
from shared.settings import Settings

PASSPHRASE = "correct horse battery"

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.mark.parametrize("page", [1, 2])
def test_backup_of_a_damaged_database_is_refused(
    page: int, settings: Settings, database: Database, tmp_path: Path
) -> None:
    database.close()
    source = file_of(settings)
    with closing(sqlite3.connect(source)) as opened:
        opened.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        [(size,)] = opened.execute("PRAGMA page_size")
    with source.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    with pytest.raises(Invalid, match="is damaged"):
        store.back_up(settings, tmp_path / "backup", None)


def test_log_of_a_replaced_empty_database_is_removed(settings: Settings, clean: Settings, tmp_path: Path) -> None:
    """SQLite would add its pages to the restored database."""
    store.back_up(settings, tmp_path / "backup", PASSPHRASE)
    file = file_of(clean)
    with closing(sqlite3.connect(file, isolation_level=None)) as empty:
        for statement in ("PRAGMA journal_mode=WAL", "CREATE TABLE t (a)", "DROP TABLE t"):
            empty.execute(statement)
        assert file.with_name(f"{file.name}-wal").exists()
        store.restore(clean, tmp_path / "backup", PASSPHRASE)
        assert list(file.parent.glob(f"{file.name}-*")) == []


def file_of(settings: Settings) -> Path:
    return Path(settings.database.removeprefix("sqlite:///"))

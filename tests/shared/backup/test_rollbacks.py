"""Backups of a database that a newer version has migrated."""

from pathlib import Path

from sqlalchemy import text

from shared.backup import store
from shared.cli.backup.operations import BackupOperations
from shared.db.migrations import opened, revision
from shared.settings import Settings

PASSPHRASE = "correct horse battery"


def test_backup_after_a_rollback_is_restored_by_the_version_that_made_it(
    settings: Settings, clean: Settings, tmp_path: Path
) -> None:
    """A newer version has migrated the database, and this version works with it."""
    with opened(settings.database) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    made = store.back_up(settings, tmp_path / "backup", PASSPHRASE)
    assert made.revision == "9999"
    BackupOperations(clean).restore(tmp_path / "backup", PASSPHRASE)
    with opened(clean.database) as connection:
        assert revision(connection) == "9999"

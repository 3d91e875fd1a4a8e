"""Several restores of one backup, each in place of the database of the one before."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from shared.backup import store
from shared.changes import change_feed
from shared.cli.backup.operations import BackupOperations
from shared.db.database import Database
from shared.settings import Settings
from tests.factories import ApiUser
from tests.services.stores import unmigrated
from tests.shared.backup.test_store import PASSPHRASE, append_change


@contextmanager
def restored(settings: Settings, backup: Path, name: str, request: pytest.FixtureRequest) -> Iterator[Database]:
    """The database of a backup that is restored into an empty one."""
    folder = backup.parent / name
    folder.mkdir()
    kind = settings.database.partition(":")[0].partition("+")[0]
    with unmigrated(kind, folder, request) as url:
        BackupOperations(Settings(var_dir=folder, database_url=url)).restore(backup, PASSPHRASE)
        with closing(Database(url)) as database:
            yield database


def test_reader_of_changes_after_the_first_restore_learns_of_the_second(
    settings: Settings, database: Database, user: ApiUser, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Otherwise it would miss the changes that have the numbers of those that it has read."""
    append_change(database, user)
    store.back_up(settings, tmp_path / "backup", PASSPHRASE)
    with restored(settings, tmp_path / "backup", "first", request) as first:
        number = append_change(first, user)
    with restored(settings, tmp_path / "backup", "second", request) as second:
        for _ in range(2):
            append_change(second, user)
        with second.reading() as session:
            assert change_feed.read(session, user.id, number) is None

"""A backup that fails leaves its folder as it was, so that the same command can be repeated."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from shared.backup import manifest, store
from shared.backup.new_folder import create_private, filling
from shared.crypto import new_secret_key
from shared.errors import Conflict
from shared.settings import Settings

PASSPHRASE = "correct horse battery"


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("exists", [False, True])
def test_refused_backup_can_be_repeated_with_the_right_keys(exists: bool, settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    if exists:
        folder.mkdir()
    other = Settings(var_dir=settings.var_dir, database_url=settings.database, secret_keys=SecretStr(new_secret_key()))
    with pytest.raises(Conflict, match="does not decrypt"):
        store.back_up(other, folder, PASSPHRASE)
    assert [path.name for path in tmp_path.glob("backup/*")] == []
    assert folder.exists() == exists
    store.back_up(settings, folder, PASSPHRASE)
    assert manifest.read(folder).has_keys


def test_backup_on_a_full_disk_leaves_nothing(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("shared.backup.manifest.os.fsync", fail)
    with pytest.raises(OSError, match="full"):
        store.back_up(settings, tmp_path / "backup", PASSPHRASE)
    assert not (tmp_path / "backup").exists()


def test_failed_backup_removes_only_its_own_files(tmp_path: Path) -> None:
    """Another backup may have been started into the same folder at the same moment."""
    with pytest.raises(FileExistsError):
        overtake(tmp_path / "backup")
    assert [path.name for path in (tmp_path / "backup").iterdir()] == ["store.sqlite"]


def overtake(folder: Path) -> None:
    with filling(folder) as written:
        create_private(folder / "own")
        written.append(folder / "own")
        (folder / "store.sqlite").write_text("of the other one")
        create_private(folder / "store.sqlite")

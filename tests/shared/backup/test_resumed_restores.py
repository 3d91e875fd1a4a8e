"""Restores that a full disk has interrupted."""

from pathlib import Path
from typing import Any

import pytest

from shared.backup import store
from shared.cli.backup.operations import BackupOperations
from shared.settings import Settings
from tests.factories import SECRET_KEY

PASSPHRASE = "correct horse battery"


def test_keys_that_did_not_fit_on_the_disk_are_written_by_the_next_attempt(
    settings: Settings, clean: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.metrics_key_file.write_text("aw_metrics\n")
    store.back_up(settings, tmp_path / "backup", PASSPHRASE)
    with monkeypatch.context() as full:
        full.setattr("shared.backup.manifest.os.fsync", fail)
        with pytest.raises(OSError, match="full"):
            BackupOperations(clean).restore(tmp_path / "backup", PASSPHRASE)
    assert list(clean.var_dir.iterdir()) == []
    BackupOperations(clean).restore(tmp_path / "backup", PASSPHRASE)
    assert clean.vault_keys == [SECRET_KEY]
    assert clean.metrics_key_file.read_text() == "aw_metrics\n"
    assert list(clean.var_dir.glob("*.before-*")) == []


def test_empty_file_in_place_of_the_secret_key_is_replaced(settings: Settings, clean: Settings, tmp_path: Path) -> None:
    """A restore by an earlier version has left it when the disk was full."""
    store.back_up(settings, tmp_path / "backup", PASSPHRASE)
    clean.var_dir.mkdir()
    clean.secret_key_file.touch()
    BackupOperations(clean).restore(tmp_path / "backup", PASSPHRASE)
    assert clean.secret_key_file.read_text() == f"{SECRET_KEY}\n"


def fail(*_: Any) -> None:
    raise OSError("the disk is full")

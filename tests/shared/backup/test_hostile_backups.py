"""Backups that were made elsewhere or changed: they reach nothing outside the installation's folder."""

import json
import os
import stat
from pathlib import Path

import pytest

from shared.backup import keys, manifest, store
from shared.settings import Settings
from tests.factories import SECRET_KEY

PASSPHRASE = "correct horse battery"


def test_names_of_keys_do_not_leave_the_folder(settings: Settings, clean: Settings, tmp_path: Path) -> None:
    store.back_up(settings, tmp_path / "backup", PASSPHRASE)
    found = {"secret.key": SECRET_KEY, "../outside.key": "one", f"{tmp_path}/absolute.key": "two"}
    (tmp_path / "backup" / manifest.KEYS).write_text(keys.lock(found, PASSPHRASE))
    store.restore(clean, tmp_path / "backup", PASSPHRASE)
    written = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.key")}
    own = clean.var_dir.relative_to(tmp_path)
    assert written == {own / name for name in ("secret.key", "outside.key", "absolute.key")}


@pytest.mark.parametrize("name", keys.COST)
def test_key_derivation_never_costs_more_than_for_own_backups(name: str) -> None:
    """The file could ask for more memory than the machine has."""
    stored = json.loads(keys.lock({"secret.key": SECRET_KEY}, PASSPHRASE))
    stored[name] *= 2
    assert keys.unlock(json.dumps(stored), PASSPHRASE) == {"secret.key": SECRET_KEY}


def test_folder_of_a_backup_is_private_whatever_the_umask(settings: Settings, tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        store.back_up(settings, tmp_path / "backup", None)
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "backup").stat().st_mode) == 0o700

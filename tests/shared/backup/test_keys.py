"""Which keys a backup and a restore need, and which a restore leaves in place."""

import json
import os
import stat
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr

from shared.backup import manifest, store
from shared.cli.backup.operations import BackupOperations
from shared.cli.local.installation import LocalInstallation
from shared.crypto import Vault, new_secret_key
from shared.db.database import Database
from shared.errors import Conflict, Invalid
from shared.models import Sandbox, Secret
from shared.settings import Settings
from tests.factories import SECRET_KEY, ApiUser, make_sandbox

PASSPHRASE = "correct horse battery"


@pytest.mark.parametrize("passphrase", [None, PASSPHRASE])
def test_restore_needs_all_keys_of_the_backup(
    passphrase: str | None, settings: Settings, clean: Settings, tmp_path: Path
) -> None:
    """Secrets may be encrypted with any of the keys."""
    former = [new_secret_key(), new_secret_key()]
    store.back_up(with_keys(settings, SECRET_KEY, *former), tmp_path / "backup", passphrase)
    with pytest.raises(Conflict, match="lacks 1 of the backup's 3 secret keys: append number 3 of those") as refusal:
        store.restore(with_keys(clean, new_secret_key(), SECRET_KEY, former[0]), tmp_path / "backup", passphrase)
    assert not any(key in str(refusal.value) for key in (SECRET_KEY, *former))
    assert not clean.var_dir.exists()
    restored = store.restore(with_keys(clean, *former, SECRET_KEY), tmp_path / "backup", passphrase)
    assert len(restored.key_tokens) == 3


def test_secret_key_file_with_one_of_the_keys_does_not_hide_the_others(
    settings: Settings, clean: Settings, tmp_path: Path
) -> None:
    store.back_up(with_keys(settings, SECRET_KEY, new_secret_key()), tmp_path / "backup", PASSPHRASE)
    clean.var_dir.mkdir()
    clean.secret_key_file.write_text(SECRET_KEY)
    with pytest.raises(Conflict, match="append number 2 of those"):
        store.restore(clean, tmp_path / "backup", PASSPHRASE)
    clean.secret_key_file.unlink()
    store.restore(clean, tmp_path / "backup", PASSPHRASE)
    assert len(clean.vault_keys) == 2


def test_backup_that_names_its_first_key_only_is_restored(settings: Settings, clean: Settings, tmp_path: Path) -> None:
    store.back_up(with_keys(settings, SECRET_KEY, new_secret_key()), tmp_path / "backup", None)
    path = tmp_path / "backup" / manifest.NAME
    values = json.loads(path.read_text())
    del values["key_tokens"]
    path.write_text(json.dumps(values))
    restored = store.restore(with_keys(clean, SECRET_KEY), tmp_path / "backup", None)
    assert restored.key_tokens == []


@pytest.mark.parametrize("passphrase", [None, PASSPHRASE])
def test_first_key_of_a_replaced_installation_is_not_in_use(
    passphrase: str | None, settings: Settings, clean: Settings, tmp_path: Path
) -> None:
    """The service prints the key of `admin.key` at each start."""
    LocalInstallation(settings).bootstrap()
    store.back_up(settings, tmp_path / "backup", passphrase)
    clean.var_dir.mkdir()
    clean.admin_key_file.write_text("aw_replaced")
    BackupOperations(with_keys(clean, SECRET_KEY)).restore(tmp_path / "backup", passphrase)
    found = [clean.admin_key_file.read_text()] if clean.admin_key_file.exists() else []
    assert found == ([settings.admin_key_file.read_text()] if passphrase else [])
    [kept] = clean.var_dir.glob("admin.key.before-*")
    assert kept.read_text() == "aw_replaced"


def test_first_key_of_the_same_installation_is_kept(settings: Settings, clean: Settings, tmp_path: Path) -> None:
    LocalInstallation(settings).bootstrap()
    store.back_up(settings, tmp_path / "backup", None)
    clean.var_dir.mkdir()
    clean.admin_key_file.write_text(settings.admin_key_file.read_text())
    BackupOperations(with_keys(clean, SECRET_KEY)).restore(tmp_path / "backup", None)
    assert clean.admin_key_file.read_text() == settings.admin_key_file.read_text()


@pytest.mark.parametrize("owner", [7, 0])
def test_restored_first_key_belongs_to_the_owner_of_its_folder(
    owner: int, settings: Settings, clean: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Compose and systemd, root restores into the folder of the service's user, whose key it was."""
    LocalInstallation(settings).bootstrap()
    store.back_up(settings, tmp_path / "backup", PASSPHRASE)
    clean.var_dir.mkdir()
    given: dict[Path, int] = {}
    status, really = os.stat_result((stat.S_IFDIR | 0o750, 0, 0, 2, owner, 8, 0, 0, 0, 0)), Path.stat
    monkeypatch.setattr(Path, "stat", lambda path, **more: status if path == clean.var_dir else really(path, **more))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(
        os, "fchown", lambda file, user, _: given.update({Path(f"/proc/self/fd/{file}").readlink(): user})
    )
    BackupOperations(with_keys(clean, SECRET_KEY)).restore(tmp_path / "backup", PASSPHRASE)
    assert given[clean.admin_key_file] == owner
    assert clean.admin_key_file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("malformed", ["hush-hush", ",", "{SECRET_KEY},hush"])
def test_malformed_secret_key_is_named_by_its_place_only(
    malformed: str, settings: Settings, clean: Settings, tmp_path: Path
) -> None:
    text = malformed.format(SECRET_KEY=SECRET_KEY)
    store.back_up(settings, tmp_path / "backup", None)
    with pytest.raises(Invalid, match=r"^AW_SECRET_KEYS, or .*secret\.key: .*agent-workspace explain") as restoring:
        store.restore(with_keys(clean, text), tmp_path / "backup", None)
    with pytest.raises(Invalid, match=r"^AW_SECRET_KEYS") as backing_up:
        store.back_up(with_keys(settings, text), tmp_path / "second", None)
    assert not any(key in str(error.value) for error in (restoring, backing_up) for key in ("hush", SECRET_KEY))
    assert not clean.var_dir.exists()
    assert not (tmp_path / "second").exists()


def with_keys(settings: Settings, *secret_keys: str) -> Settings:
    return Settings(
        var_dir=settings.var_dir, database_url=settings.database, secret_keys=SecretStr(",".join(secret_keys))
    )


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("passphrase", [None, PASSPHRASE])
def test_backup_with_other_keys_than_those_of_the_database_is_refused(
    passphrase: str | None, settings: Settings, tmp_path: Path
) -> None:
    """The command may run with another `secret.key` than the service, and no restore could read the secrets."""
    other = new_secret_key()
    with pytest.raises(Conflict, match="does not decrypt the secret that was stored last") as refusal:
        store.back_up(with_keys(settings, other), tmp_path / "backup", passphrase)
    assert other not in str(refusal.value)
    assert not (tmp_path / "backup" / manifest.NAME).exists()
    store.back_up(with_keys(settings, other, SECRET_KEY), tmp_path / "second", passphrase)


def test_backup_is_made_if_an_older_secret_needs_a_key_that_was_lost(
    settings: Settings, database: Database, user: ApiUser, sandbox: Sandbox, tmp_path: Path
) -> None:
    lost = Vault([new_secret_key()])
    with database.transaction() as session:
        row = Secret(user_id=user.id, name="OLD", ciphertext=lost.encrypt("v"))
        row.updated_at = sandbox.created_at - timedelta(days=1)
        session.add(row)
    store.back_up(settings, tmp_path / "backup", PASSPHRASE)
    assert manifest.read(tmp_path / "backup").has_keys


@pytest.mark.usefixtures("sandbox")
def test_backup_with_a_new_key_after_a_loss_needs_a_secret_that_it_has_encrypted(
    settings: Settings, database: Database, user: ApiUser, tmp_path: Path
) -> None:
    """The error names the way out: nothing tells an operator's new key from the key of another installation."""
    new = with_keys(settings, new_secret_key())
    with pytest.raises(Conflict, match="if its key is lost, start a sandbox with the new key first"):
        store.back_up(new, tmp_path / "backup", PASSPHRASE)
    session_key, digest = Vault(new.vault_keys).new_session_key()
    make_sandbox(database, user, session_key=session_key, session_key_digest=digest)
    assert store.back_up(new, tmp_path / "backup", PASSPHRASE).has_keys

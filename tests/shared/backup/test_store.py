"""Backup and restore of the store and its keys, on both databases."""

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from pydantic import SecretStr

from shared.backup import manifest, postgresql, sqlite, store
from shared.changes import change_feed, recorder
from shared.changes.recorder import Change, Kind
from shared.cli.backup.operations import BackupOperations
from shared.cli.local.installation import LocalInstallation
from shared.clock import now
from shared.crypto import Vault, new_secret_key
from shared.db import unfinished_restore
from shared.db.database import Database
from shared.db.migrations import migrate
from shared.errors import Conflict, Invalid
from shared.models import Conversation, Sandbox
from shared.settings import Settings
from shared.states import DeadlineAction, Desired, PauseKind, Status
from tests.factories import SECRET_KEY, ApiUser, make_sandbox, session_key_of

PASSPHRASE = "correct horse battery"


def test_restored_installation_has_rows_and_keys(
    settings: Settings,
    database: Database,
    sandbox: Sandbox,
    conversation: Conversation,
    clean: Settings,
    tmp_path: Path,
) -> None:
    settings.admin_key_file.write_text("aw_admin\n")
    made = store.back_up(settings, tmp_path / "backup", PASSPHRASE)
    assert (made.has_keys, made.dialect) == (True, database.engine.dialect.name)
    files = {path.name for path in (tmp_path / "backup").iterdir()}
    assert files == {manifest.NAME, manifest.KEYS, made.store}
    assert {stat.S_IMODE((tmp_path / "backup" / name).stat().st_mode) for name in files} == {0o600}
    texts = [(tmp_path / "backup" / name).read_text() for name in (manifest.NAME, manifest.KEYS)]
    assert [text for text in texts if SECRET_KEY in text or "aw_admin" in text] == []

    store.restore(clean, tmp_path / "backup", PASSPHRASE)
    migrate(clean.database)
    assert clean.admin_key_file.read_text().strip() == "aw_admin"
    assert stat.S_IMODE(clean.secret_key_file.stat().st_mode) == 0o600
    with reading(clean) as restored, restored.reading() as session:
        row = session.get_one(Sandbox, sandbox.id)
        assert Vault(clean.vault_keys).decrypt(row.session_key) == session_key_of(sandbox)
        assert session.get_one(Conversation, conversation.id).title == conversation.title


def test_restore_lets_idle_deadlines_begin_again(database: Database, user: ApiUser) -> None:
    long_ago = now() - timedelta(days=30)
    paused = make_sandbox(
        database,
        user,
        status=Status.PAUSED,
        pause_kind=PauseKind.STOPPED,
        delete_after_seconds=60,
        status_changed_at=long_ago,
        last_active_at=long_ago,
        deadline_at=long_ago,
        deadline_does=DeadlineAction.DELETE,
    )
    with database.transaction() as session:
        assert store.with_deadlines(session) == [paused.id]
        store.restart_deadlines(session, [paused.id])
    with database.reading() as session:
        row = session.get_one(Sandbox, paused.id)
        assert (row.desired, row.deadline_does) == (Desired.PAUSED, DeadlineAction.DELETE)
        assert row.deadline_at is not None
        assert row.deadline_at > now()


def test_reader_of_lost_changes_learns_that(
    settings: Settings, database: Database, user: ApiUser, other_user: ApiUser, clean: Settings, tmp_path: Path
) -> None:
    append_change(database, user)
    store.back_up(settings, tmp_path / "backup", PASSPHRASE)
    read = [(user, append_change(database, user)), (other_user, append_change(database, other_user))]
    BackupOperations(clean).restore(tmp_path / "backup", PASSPHRASE)
    with reading(clean) as restored:
        for reader, number in read:
            append_change(restored, reader)
            with restored.reading() as session:
                assert change_feed.read(session, reader.id, number) is None


def append_change(database: Database, owner: ApiUser) -> int:
    with database.transaction() as session:
        recorder.append(session, [Change(owner.id, Kind.SANDBOX, owner.id, None)])
        return change_feed.last(session, [owner.id])[owner.id]


def spoil_store(backup: Path) -> None:
    [path] = backup.glob("store.*")
    with path.open("r+b") as file:
        file.seek(1000)
        file.write(b"damaged")


def age_code(backup: Path) -> None:
    path = backup / manifest.NAME
    path.write_text(re.sub('"(revision|made_by)": "0', r'"\1": "9', path.read_text()))


def change_format(backup: Path) -> None:
    path = backup / manifest.NAME
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))


def change_dialect(backup: Path) -> None:
    path = backup / manifest.NAME
    path.write_text(path.read_text().replace('"dialect": "', '"dialect": "other'))


def cut_manifest(backup: Path) -> None:
    path = backup / manifest.NAME
    path.write_text(path.read_text()[:40])


def rename_field(backup: Path) -> None:
    path = backup / manifest.NAME
    path.write_text(path.read_text().replace('"store"', '"stare"'))


def name_no_file(backup: Path) -> None:
    path = backup / manifest.NAME
    path.write_text(path.read_text().replace('"store": "', '"store": "un'))


def leave_unfinished(backup: Path) -> None:
    (backup / manifest.NAME).unlink()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_store, "is damaged"),
        (age_code, "install the version that made the backup"),
        (change_format, "made by a later version"),
        (change_dialect, "restored into the same kind"),
        (cut_manifest, r"backup\.json is damaged"),
        (rename_field, r"backup\.json is damaged"),
        (name_no_file, r"backup\.json is damaged"),
        (leave_unfinished, "is no complete backup"),
    ],
)
def test_restore_refuses_an_invalid_backup(
    spoil: Callable[[Path], None], words: str, settings: Settings, clean: Settings, tmp_path: Path
) -> None:
    store.back_up(settings, tmp_path / "backup", PASSPHRASE)
    spoil(tmp_path / "backup")
    with pytest.raises(Invalid, match=words):
        store.restore(clean, tmp_path / "backup", PASSPHRASE)
    assert not clean.var_dir.exists()


def test_restore_refuses_a_database_that_is_not_empty(settings: Settings, tmp_path: Path) -> None:
    store.back_up(settings, tmp_path / "backup", None)
    with pytest.raises(Conflict, match=r"is not empty: stop the service, and move (its database|it) away"):
        store.restore(settings, tmp_path / "backup", None)


def test_interrupted_restore_continues(
    settings: Settings, clean: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.back_up(settings, tmp_path / "backup", PASSPHRASE)
    with monkeypatch.context() as interrupted:
        interrupted.setattr(BackupOperations, "prepare", fail)
        with pytest.raises(OSError, match="full"):
            BackupOperations(clean).restore(tmp_path / "backup", PASSPHRASE)
    BackupOperations(clean).restore(tmp_path / "backup", PASSPHRASE)
    with pytest.raises(Conflict, match="is not empty"):
        BackupOperations(clean).restore(tmp_path / "backup", PASSPHRASE)


def test_nothing_starts_before_an_interrupted_restore_has_finished(
    settings: Settings, clean: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise sandboxes whose deadline passed after the backup would be deleted."""
    store.back_up(settings, tmp_path / "backup", PASSPHRASE)
    for step in ("prepare", "reading"):  # before the migration, and before deadlines restart
        with monkeypatch.context() as interrupted:
            interrupted.setattr(BackupOperations, step, fail)
            with pytest.raises(OSError, match="full"):
                BackupOperations(clean).restore(tmp_path / "backup", PASSPHRASE)
        for start in (partial(LocalInstallation(clean).migrate), partial(refuse, clean)):
            with pytest.raises(Conflict, match=r"not finished.*explain a-restore-did-not-finish"):
                start()
    BackupOperations(clean).restore(tmp_path / "backup", PASSPHRASE)
    LocalInstallation(clean).migrate()
    refuse(clean)


def refuse(settings: Settings) -> None:
    """Open the store as a process of the service does."""
    with reading(settings) as restored:
        unfinished_restore.require_finished(restored)


def test_restore_needs_the_passphrase_or_the_key(settings: Settings, clean: Settings, tmp_path: Path) -> None:
    store.back_up(settings, tmp_path / "backup", PASSPHRASE)
    with pytest.raises(Invalid, match="the passphrase does not decrypt the keys"):
        store.restore(clean, tmp_path / "backup", "another passphrase")
    with pytest.raises(Invalid, match="the secret key is missing"):
        store.restore(clean, tmp_path / "backup", None)
    other = clean.model_copy(update={"secret_keys": SecretStr(new_secret_key())})
    with pytest.raises(Conflict, match="is not the key of this backup"):
        store.restore(other, tmp_path / "backup", PASSPHRASE)
    assert not clean.var_dir.exists()


def test_configured_secret_key_is_not_written_to_a_file(settings: Settings, clean: Settings, tmp_path: Path) -> None:
    store.back_up(settings, tmp_path / "backup", PASSPHRASE)
    configured = clean.model_copy(update={"secret_keys": SecretStr(SECRET_KEY)})
    store.restore(configured, tmp_path / "backup", PASSPHRASE)
    assert not clean.secret_key_file.exists()


def test_backup_needs_a_new_folder_and_a_long_passphrase(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="12 characters"):
        store.back_up(settings, tmp_path / "backup", "short")
    assert not (tmp_path / "backup").exists()
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / "another").touch()
    with pytest.raises(Conflict, match="is not empty"):
        store.back_up(settings, tmp_path / "backup", None)


def test_restored_file_is_private_from_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "store.sqlite").write_bytes(b"rows")
    monkeypatch.setattr("shared.backup.sqlite.os.fsync", fail)
    monkeypatch.setattr("pathlib.Path.chmod", fail)  # a change of the mode afterwards would be too late
    umask = os.umask(0)
    try:
        with pytest.raises(OSError, match="full"):
            sqlite.load(tmp_path / "store.sqlite", f"sqlite:///{tmp_path / 'new.db'}", "digest")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "new.db.restoring").stat().st_mode) == 0o600


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_missing_or_old_programs_of_postgresql_are_named(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(postgresql, "_version", lambda _program: 9)
    with pytest.raises(Invalid, match=r"pg_dump \d+ or newer.* is missing: install postgresql-client-\d+"):
        store.back_up(settings, tmp_path / "backup", None)


def fail(*_arguments: object) -> None:
    raise OSError("the disk is full")


@contextmanager
def reading(settings: Settings) -> Iterator[Database]:
    database = Database(settings.database)
    try:
        yield database
    finally:
        database.close()

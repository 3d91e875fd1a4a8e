"""Backup and restore of an installation's store and keys."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import delete, inspect, make_url, update
from sqlmodel import Session, col, select

from shared.backup import former_files, keys, manifest, postgresql, sqlite, stored_secrets
from shared.backup.manifest import Manifest
from shared.backup.new_folder import create_private, filling
from shared.clock import now
from shared.db import migrations, unfinished_restore
from shared.errors import Conflict, Invalid
from shared.models import Sandbox, StaleContainer, StartTask, UnknownContainer
from shared.models.conversations import UNFINISHED
from shared.private_files import replace_file
from shared.sandboxes import deadlines
from shared.settings import Settings
from shared.states import Desired

STORES = {"sqlite": sqlite, "postgresql": postgresql}


def back_up(settings: Settings, folder: Path, passphrase: str | None) -> Manifest:
    """Write a backup into a new folder while the service runs.

    Args:
        folder: a folder that is empty or does not exist.
        passphrase: encrypts the keys; None leaves them out.

    Raises:
        Conflict: the folder is not empty, or the secret keys are not those of the database.
        Invalid: there is no database, it is damaged, `pg_dump` is missing or failed, the passphrase is too short, or a
            secret key is missing or malformed.
    """
    dialect = _dialect(settings)
    store, tokens = STORES[dialect], _tokens(keys.read_keys(settings), keys.place_of(settings))
    locked = None if passphrase is None else keys.lock(_read_keys(settings), passphrase)
    with filling(folder) as written:
        file = folder / store.FILE
        create_private(file)
        written.append(file)
        store.dump(settings.database, file)
        _require_own_key(settings)
        if locked is not None:
            written.append(folder / manifest.KEYS)
            replace_file(folder / manifest.KEYS, locked)
        made = Manifest(
            dialect=dialect,
            revision=_revision(settings.database),
            key_token=tokens[0],
            key_tokens=tokens,
            created_at=now().isoformat(timespec="seconds"),
            store=store.FILE,
            sha256=manifest.digest(file),
            has_keys=locked is not None,
            made_by=migrations.newest() or "",
        )
        manifest.write(folder, made)
    return made


def restore(settings: Settings, folder: Path, passphrase: str | None) -> Manifest:
    """Restore a backup into an installation without a database. The caller migrates it afterwards.

    Everything is checked before anything is written. Until the caller clears the mark of `unfinished_restore`, no
    process of the service starts, and the restore of the same backup can be repeated.

    Args:
        folder: the backup.
        passphrase: decrypts its keys; None: the installation has its secret key already.

    Raises:
        Conflict: there is a database already, or another secret key.
        Invalid: the backup is incomplete, damaged, of another kind of database or of a later schema, the passphrase is
            wrong, or a secret key is malformed.
    """
    made = manifest.read(folder)
    _require_restorable(settings, made)
    found = _open_keys(folder, made, passphrase)
    _require_key(settings, made, found)
    settings.var_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write_keys(settings, found)
    if not _tables(settings.database):
        # Atomically: a repeated restore finds the whole database, or nothing.
        STORES[made.dialect].load(folder / made.store, settings.database, made.sha256)
    return made


def with_deadlines(session: Session) -> Sequence[str]:
    """The ids of the sandboxes that have a deadline, in order."""
    with_deadline = (col(Sandbox.deadline_at).is_not(None), col(Sandbox.desired) != Desired.DELETED)
    return session.exec(select(Sandbox.id).where(*with_deadline).order_by(col(Sandbox.id))).all()


def restart_deadlines(session: Session, sandbox_ids: Sequence[str]) -> None:
    """Restart idle deadlines: the time since the backup does not count as idle time of the sandboxes.

    Otherwise a sandbox whose deadline has passed since would be deleted, with its restored files.
    """
    for sandbox_id in sandbox_ids:
        deadlines.record_activity(session, sandbox_id)


def forget_removals(session: Session) -> None:
    """Forget which containers were to be removed: since the backup, they may have been used.

    Workers find the containers again. They pause and keep them (decision 47), unless their sandbox is deleted.
    """
    for table in (StaleContainer, UnknownContainer):
        session.execute(delete(table))


def keep_started(session: Session) -> None:
    """Keep the files of sandboxes that were starting, or in which a conversation was: they may have been used since.

    If the boot failed now, or the start of the conversation, their files would be removed. Sandboxes of the warm pool
    are checked by workers (decision 47).
    """
    of_starts = select(StartTask.sandbox_id).where(*UNFINISHED)
    session.execute(_change({"goes_with_conversations": False}, col(Sandbox.id).in_(of_starts)))
    is_starting = (col(Sandbox.desired) == Desired.RUNNING, col(Sandbox.generation) != col(Sandbox.observed_generation))
    is_new = (col(Sandbox.ready_at).is_(None), col(Sandbox.boot_key).is_(None))
    session.execute(_change({"ready_at": now()}, *is_starting, *is_new))


def _change(values: dict[str, Any], *where: Any) -> Any:
    return update(Sandbox).where(*where).values(values).execution_options(synchronize_session=False)


def _is_unfinished(settings: Settings, made: Manifest) -> bool:
    """Whether a restore of this backup into this database was interrupted."""
    with migrations.connected(settings.database) as connection:
        return unfinished_restore.read(connection) == made.sha256


def _require_restorable(settings: Settings, made: Manifest) -> None:
    if made.dialect != _dialect(settings):
        raise Invalid(
            f"this is a backup of a {made.dialect} database, and AW_DATABASE_URL names a {_dialect(settings)} "
            "database: a backup is restored into the same kind"
        )
    # After a rollback, the version that made the backup works with a schema that it does not know.
    if not any(map(migrations.is_known, (made.revision, made.made_by))):
        raise Invalid(
            f"the backup has the schema {made.revision}, which this version does not know: install the version that "
            "made the backup, or a newer one, and restore it with that"
        )
    if _tables(settings.database) and not _is_unfinished(settings, made):
        raise Conflict(f"{_describe(settings.database)}, or name an empty one in AW_DATABASE_URL; nothing was changed")


def _describe(database_url: str) -> str:
    """Which database is in the way, and what to move: the file itself, not a link to it."""
    url = make_url(database_url)
    if url.get_backend_name() != "sqlite":
        return f"{url.set(query={}).render_as_string()} is not empty: stop the service, and move its database away"
    file = Path(url.database or "").resolve()
    return f"{file} is not empty: stop the service, and move it away, with {file.name}-wal if there is one"


def _require_own_key(settings: Settings) -> None:
    """Check that the database uses the configured secret keys."""
    if "sandbox" in _tables(settings.database):
        with migrations.connected(settings.database) as connection:
            stored_secrets.require_key(connection, keys.read_vault(settings), keys.place_of(settings))


def _require_key(settings: Settings, made: Manifest, found: dict[str, str]) -> None:
    own = settings.secret_keys.get_secret_value() or _text(settings.secret_key_file)
    secret = own or found.get(settings.secret_key_file.name)
    if not secret:
        raise Invalid(
            f"the secret key is missing: put the file {settings.secret_key_file} back, or set AW_SECRET_KEYS to it"
        )
    place = keys.place_of(settings)
    has, needed = _tokens(keys.split(secret), place), _needed_tokens(settings, made, found)
    if made.key_token not in has:
        raise Conflict(
            f"{place}, is not the key of this backup: put the right one there, "
            "or remove it if the backup contains its keys; nothing was changed"
        )
    if lacking := [str(number) for number, token in enumerate(needed, start=1) if token not in has]:
        raise Conflict(
            f"{place}, lacks {len(lacking)} of the backup's {len(needed)} secret keys: append number "
            f"{' and '.join(lacking)} of those that AW_SECRET_KEYS had at the time of the backup, or remove what is "
            "there if the backup contains its keys; nothing was changed"
        )


def _needed_tokens(settings: Settings, made: Manifest, found: dict[str, str]) -> Sequence[str]:
    """The tokens of all keys that secrets of the backup may be encrypted with, in the order of the keys."""
    saved = keys.split(found.get(settings.secret_key_file.name, ""))
    return _tokens(saved, manifest.KEYS) if saved else made.key_tokens or [made.key_token]


def _tokens(secret_keys: list[str], place: str) -> list[str]:
    return keys.open_vault(secret_keys, place).derive_all(manifest.PURPOSE)


def _write_keys(settings: Settings, found: dict[str, str]) -> None:
    """Write the backup's keys. A file with another key is renamed, because the restored database does not know it."""
    if settings.secret_keys.get_secret_value():
        found.pop(settings.secret_key_file.name, None)  # the operator keeps it elsewhere: do not write it to this disk
    for name, text in found.items():
        path = settings.var_dir / name
        if path.name != settings.secret_key_file.name and _text(path) != text:
            former_files.keep(path)
        if not _text(path):
            replace_file(path, text)


def _open_keys(folder: Path, made: Manifest, passphrase: str | None) -> dict[str, str]:
    if passphrase is None:
        return {}
    if not made.has_keys:
        raise Invalid("the backup was made without keys: restore it without a passphrase, with the secret key in place")
    found = keys.unlock((folder / manifest.KEYS).read_text(), passphrase)
    return {Path(name).name: text for name, text in found.items()}


def _read_keys(settings: Settings) -> dict[str, str]:
    files = (settings.admin_key_file, settings.metrics_key_file)
    found = {file.name: text for file in files if (text := _text(file))}
    return {settings.secret_key_file.name: ",".join(settings.vault_keys), **found}


def _text(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _dialect(settings: Settings) -> str:
    return make_url(settings.database).get_backend_name()


def _revision(database_url: str) -> str:
    with migrations.connected(database_url) as connection:
        return migrations.revision(connection) or ""


def _tables(database_url: str) -> list[str]:
    file = make_url(database_url)
    if file.get_backend_name() == "sqlite" and not Path(file.database or "").exists():
        return []
    with migrations.connected(database_url) as connection:
        return [name for name in inspect(connection).get_table_names() if name != unfinished_restore.TABLE]

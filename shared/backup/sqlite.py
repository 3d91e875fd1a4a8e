"""SQLite: a consistent copy of the file while the service writes, by SQLite's online backup."""

import os
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from sqlalchemy import make_url

from shared.backup import former_files
from shared.backup.manifest import sync_folder
from shared.db import unfinished_restore
from shared.db.file_owner import acting_as_owner
from shared.errors import Invalid
from shared.service_urls import sqlite_url

FILE = "store.sqlite"
# Errors of a database whose first page or schema can't be read. An extended code has more bits.
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def dump(database_url: str, path: Path) -> None:
    """Copy the database into an empty file in one read transaction. In WAL mode, it blocks no writer.

    Raises:
        Invalid: there is no database, or it is damaged.
    """
    source = _file(database_url)
    if not source.exists():
        raise Invalid(f"no database at {source}: there is nothing to back up")
    with closing(_open(database_url)) as database, closing(sqlite3.connect(path)) as copy:
        result = _copy_and_check(database, copy)
    if result != "ok":
        raise Invalid(f"{source} is damaged: {result}")


def load(path: Path, database_url: str, digest: str) -> None:
    """Replace the database by a copy that is marked as unfinished, atomically: a crash leaves no partial database."""
    target = _file(database_url)
    draft = target.with_name(f"{target.name}.restoring")
    draft.unlink(missing_ok=True)
    _copy_private(path, draft)
    unfinished_restore.mark(sqlite_url(draft), digest)
    if not target.exists():  # an operator has moved the database away without its log
        former_files.keep(target, former_files.LOGS)
    for suffix in former_files.LOGS:  # those of the empty database that is replaced
        target.with_name(target.name + suffix).unlink(missing_ok=True)
    draft.replace(target)
    sync_folder(target.parent)


def _open(database_url: str) -> sqlite3.Connection:
    """Open the database, with its log, as its owner."""
    with acting_as_owner(database_url):
        database = sqlite3.connect(_file(database_url))
        with suppress(sqlite3.DatabaseError):  # the copy finds the damage
            database.execute("SELECT 1 FROM sqlite_schema").fetchone()
        return database


def _copy_and_check(database: sqlite3.Connection, copy: sqlite3.Connection) -> str:
    """Return `ok`, or what is damaged."""
    try:
        database.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
        [(result,)] = copy.execute("PRAGMA quick_check(1)")
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF not in DAMAGED:
            raise
        return str(error)
    return str(result)


def _copy_private(path: Path, draft: Path) -> None:
    flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY
    with path.open("rb") as source, os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
        shutil.copyfileobj(source, file)
        file.flush()
        os.fsync(file.fileno())


def _file(database_url: str) -> Path:
    return Path(make_url(database_url).database or "")

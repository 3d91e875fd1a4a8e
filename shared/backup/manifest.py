"""`backup.json`: what a backup contains. It is written last, so a folder without it is an unfinished backup."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from shared.errors import Invalid
from shared.private_files import replace_file

NAME, KEYS = "backup.json", "keys.json"
FORMAT = 1
# The purpose of the token by which a restore recognizes the secret key.
PURPOSE = "backup"


@dataclass(frozen=True)
class Manifest:
    """What a backup contains."""

    # `sqlite` or `postgresql`.
    dialect: str
    # The last applied migration.
    revision: str
    # Derived from the first secret key, which encrypts new secrets. It does not reveal the key.
    key_token: str
    created_at: str
    # The name of the store's file, and its digest.
    store: str
    sha256: str
    has_keys: bool
    # Derived from every secret key. Older backups have none.
    key_tokens: list[str] = field(default_factory=list)
    # The last migration of the version that made the backup: an earlier one than `revision` after a rollback. Older
    # backups have none.
    made_by: str = ""
    format: int = FORMAT


def write(folder: Path, manifest: Manifest) -> None:
    """Complete a backup by writing its manifest."""
    replace_file(folder / NAME, json.dumps(asdict(manifest), indent=2))


def read(folder: Path) -> Manifest:
    """Read and check a backup.

    Raises:
        Invalid: the backup is incomplete, of a later format, or damaged.
    """
    try:
        values = json.loads((folder / NAME).read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise Invalid(f"{folder} is no complete backup: it has no {NAME}") from None
    except ValueError:
        raise Invalid(f"{folder / NAME} is damaged: it is not JSON") from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise Invalid(f"{folder} was made by a later version: restore it with that version")
    try:
        manifest = Manifest(**values)
        found = digest(folder / manifest.store)
    except (OSError, TypeError, ValueError):
        raise Invalid(f"{folder / NAME} is damaged: it does not name the store's file") from None
    if found != manifest.sha256:
        raise Invalid(f"{folder / manifest.store} is damaged: it is not the file that the backup wrote")
    return manifest


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: those of files that were created, renamed or removed."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

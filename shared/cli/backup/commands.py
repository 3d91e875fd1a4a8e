"""The commands for backup and restore: of the store, and of the sandboxes' files on a node."""

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shared.errors import Invalid
from shared.settings import Settings

if TYPE_CHECKING:
    from shared.cli.backup.operations import BackupOperations

Folder = Annotated[Path, typer.Argument(help="The folder of the backup.")]
PassphraseFile = Annotated[
    Path | None, typer.Option("--passphrase-file", help="A file with the passphrase. Default: prompt for it.")
]
WithoutKeys = Annotated[
    bool, typer.Option("--without-keys", help="The backup does not contain the secret key, which is kept elsewhere.")
]


def back_up(folder: Folder, passphrase_file: PassphraseFile = None, without_keys: WithoutKeys = False) -> None:
    """Write the database, and the keys encrypted with a passphrase, into a new folder. The service may run."""
    passphrase = None if without_keys else _read_passphrase(passphrase_file, confirm=True)
    made = _operations().back_up(folder, passphrase)
    kept = "with its keys, encrypted" if made.has_keys else "without keys: keep the secret key elsewhere"
    typer.echo(f"backed up the {made.dialect} database, schema {made.revision}, {kept}")
    settings = Settings()
    for file in (settings.admin_key_file, settings.metrics_key_file) if made.has_keys else ():
        if not file.exists():
            where = "if the service has it in another folder, name that folder in AW_VAR_DIR, and repeat the backup"
            typer.echo(f"not in the backup: {file.absolute()} does not exist; {where}", err=True)


def restore(folder: Folder, passphrase_file: PassphraseFile = None, without_keys: WithoutKeys = False) -> None:
    """Restore a backup into an installation without a database, and migrate it. The service must be stopped."""
    passphrase = None if without_keys else _read_passphrase(passphrase_file, confirm=False)
    made, sandboxes = _operations().restore(folder, passphrase)
    typer.echo(f"restored the {made.dialect} database of {made.created_at}")
    typer.echo(f"idle deadlines of {sandboxes} sandboxes begin again; keys revoked since the backup are valid again")
    typer.echo("next: on each node, before its worker starts: agent-workspace nodes restore FOLDER")


def back_up_files(folder: Folder) -> None:
    """Back up the files of this machine's paused and stopped sandboxes. Run it as root beside the engine."""
    _run_beside_engine("backup", folder)


def restore_files(folder: Folder) -> None:
    """Restore files of sandboxes that have none on this machine. Run it as root, before its worker starts."""
    _run_beside_engine("restore", folder)


def _operations() -> "BackupOperations":
    from shared.cli.backup.operations import BackupOperations

    return BackupOperations(Settings())


def _run_beside_engine(action: str, folder: Path) -> None:
    # In a separate process: only the worker's code knows the engine. -P: root must run no module of the current folder.
    command = [sys.executable, "-P", "-m", "worker.backup", action, str(folder)]
    raise typer.Exit(subprocess.run(command, check=False).returncode)  # noqa: S603


def _read_passphrase(file: Path | None, *, confirm: bool) -> str:
    if file is not None:
        return file.read_text().rstrip("\n")
    if not sys.stdin.isatty():
        raise Invalid(f"{Settings().secret_key_file.name} needs a passphrase: --passphrase-file, or --without-keys")
    return str(typer.prompt("passphrase", hide_input=True, confirmation_prompt=confirm, err=True))

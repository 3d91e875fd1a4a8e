"""`agent-workspace nodes backup | restore FOLDER`, for the files of this node's sandboxes. Runs as root on the node."""

import json
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from shared.backup.manifest import digest
from shared.backup.new_folder import filling
from shared.cli.exits import INTERRUPTED, fail
from shared.cli.local.installation import LocalInstallation
from shared.cli.output import NAME
from shared.db.database import Database, Session, StoreError
from shared.db.file_owner import acting_as_owner
from shared.errors import Invalid
from shared.models import Sandbox
from shared.nodes import registry
from shared.private_files import replace_file
from shared.sandboxes import queries
from shared.settings import Settings
from shared.states import Desired, Status
from worker.backup.archives import ArchiveError, Limits, SandboxActive
from worker.backup.files import NodeFiles
from worker.engine.disk_engine import DiskEngine
from worker.engine.protocol import DiskKind
from worker.sandboxes.container_spec import container_name, labels_of
from worker.settings import WorkerSettings

MANIFEST = "files.json"
DONE = {"backup": "saved", "restore": "restored"}
# Statuses of used sandboxes whose processes do not run.
AT_REST = (Status.PAUSED, Status.ERROR)
UNIX = "unix://"


class NodeBackup:
    """Backup and restore of the files of one node's sandboxes."""

    def __init__(self, database: Database, settings: WorkerSettings, installation: str, files: NodeFiles) -> None:
        self._database, self._settings = database, settings
        self._installation, self._files = installation, files

    def save(self, folder: Path) -> dict[str, Exception]:
        """Write the archives of all sandboxes at rest into a new folder, the smallest first.

        The order keeps a sandbox with huge files from taking the disk space that the others need.

        Returns:
            The sandboxes that are left out, and why.
        """
        saved: dict[str, Any] = {}
        left_out: dict[str, Exception] = {}
        with filling(folder) as written:
            for sandbox_id in self._smallest_first(left_out):
                with _recorded(sandbox_id, left_out):
                    saved[sandbox_id] = self._save(sandbox_id, folder)
                    written.append(folder / saved[sandbox_id]["file"])
            text = {"node": self._settings.node, "installation": self._installation, "sandboxes": saved}
            replace_file(folder / MANIFEST, json.dumps(text, indent=2))
        return left_out

    def restore(self, folder: Path) -> dict[str, Exception]:
        """Restore the files of all sandboxes in a backup that are placed on this node and have no files here.

        Returns:
            The sandboxes that are left out, and why.
        """
        left_out: dict[str, Exception] = {}
        for sandbox_id, entry in self._read(folder).items():
            with _recorded(sandbox_id, left_out):
                self._restore(sandbox_id, folder, entry)
        return left_out

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        with acting_as_owner(self._database.engine.url), self._database.reading() as session:
            yield session

    def _smallest_first(self, left_out: dict[str, Exception]) -> list[str]:
        sizes: dict[str, int] = {}
        for sandbox_id in self._sandboxes():
            with _recorded(sandbox_id, left_out):
                self._read_generations(sandbox_id)
                sizes[sandbox_id] = self._files.size(container_name(sandbox_id))
        return sorted(sizes, key=lambda sandbox_id: sizes[sandbox_id])

    def _sandboxes(self) -> list[str]:
        with self._reading() as session:
            return [row.id for row in queries.on_node(session, self._settings.node) if row.desired != Desired.DELETED]

    def _save(self, sandbox_id: str, folder: Path) -> dict[str, Any]:
        name, before = container_name(sandbox_id), self._read_generations(sandbox_id)
        limits = Limits(self._settings.min_free_disk_bytes, self._settings.backup_sandbox_bytes)
        kind, archive = self._files.save(name, folder, limits)
        try:
            if self._read_generations(sandbox_id) != before:
                raise SandboxActive("it was resumed during the backup")
        except BaseException:
            (folder / archive.file).unlink()
            raise
        return {"kind": kind, **asdict(archive)}

    def _read_generations(self, sandbox_id: str) -> tuple[int, int]:
        """The generations of a sandbox at rest: they change with each request to resume or delete it."""
        with self._reading() as session:
            row = session.get(Sandbox, sandbox_id)
        if row is None or row.status not in AT_REST or row.ready_at is None:
            raise SandboxActive(f"it is {row.status if row else Status.DELETED}: pause or stop it first")
        if not self._files.is_inactive(container_name(sandbox_id)):
            raise SandboxActive("its processes run: pause or stop it first")
        return row.generation, row.observed_generation

    def _read(self, folder: Path) -> dict[str, Any]:
        """The entries of the backup's sandboxes, by id."""
        node, installation, sandboxes = _read_manifest(folder)
        if installation != self._installation:
            raise Invalid(f"{folder} belongs to another installation: restore the database of its backup first")
        if node != self._settings.node:
            raise Invalid(f"{folder} is of the node {node}, and this is {self._settings.node}: set AW_NODE")
        return sandboxes

    def _restore(self, sandbox_id: str, folder: Path, entry: Any) -> None:
        archive, kind, sha256 = _checked(folder, entry)
        with self._reading() as session:
            row = session.get(Sandbox, sandbox_id)
        if row is None or row.desired == Desired.DELETED or row.node_id != self._settings.node:
            raise ArchiveError("the database has no such sandbox on this node")
        name = container_name(sandbox_id)
        if self._files.exist(name):
            raise ArchiveError("it has files here already, which were not touched")
        if digest(archive) != sha256:
            raise ArchiveError(f"{archive.name} is damaged")
        self._files.restore(name, kind, archive, labels_of(row, self._installation))


@contextmanager
def _recorded(sandbox_id: str, left_out: dict[str, Exception]) -> Iterator[None]:
    """Leave a sandbox out if any error occurs for it, except of the store, and continue with the others."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:  # noqa: BLE001 - its files are hostile; the error is reported at the end
        left_out[sandbox_id] = error


def _read_manifest(folder: Path) -> tuple[str, str, dict[str, Any]]:
    """The node and the installation of a backup, and the entries of its sandboxes by id."""
    try:
        text = json.loads((folder / MANIFEST).read_text())
        return text["node"], text["installation"], dict(text["sandboxes"].items())
    except (FileNotFoundError, NotADirectoryError):
        raise Invalid(f"{folder} is no complete backup of a node's files: it has no {MANIFEST}") from None
    except ValueError:
        raise Invalid(f"{folder / MANIFEST} is damaged: it is not JSON") from None
    except (AttributeError, KeyError, TypeError):
        raise Invalid(f"{folder / MANIFEST} is damaged: it names no node, installation or sandboxes") from None


def _checked(folder: Path, entry: Any) -> tuple[Path, DiskKind, str]:
    try:
        return folder / Path(entry["file"]).name, DiskKind(entry["kind"]), entry["sha256"]
    except (KeyError, TypeError, ValueError):
        raise ArchiveError(f"its entry in {MANIFEST} is damaged") from None


def main(action: str, folder: str) -> int:
    """Run one action; return the exit status: 1 if a sandbox at rest was left out.

    Raises:
        Invalid: the process is not root beside the engine, there is no database, or the backup can't be restored here.
        NotFound: the database has no node of this name.
    """
    settings = WorkerSettings()
    if os.geteuid() != 0 or not settings.docker_host.startswith(UNIX):
        raise Invalid("run this as root on the node, beside its engine (AW_DOCKER_HOST is a socket of this machine)")
    with LocalInstallation(Settings()).reading() as session:
        registry.get(session, settings.node)
        installation = registry.installation_id(session)
    database = Database(Settings().database, pool_size=1)
    try:
        files = NodeFiles(DiskEngine(settings.docker_host, installation), installation)
        backup = NodeBackup(database, settings, installation, files)
        left_out = (backup.save if action == "backup" else backup.restore)(Path(folder).absolute())
    finally:
        database.close()
    print(summary(action, Path(folder), left_out.keys()))  # noqa: T201 - its output
    for sandbox_id, reason in left_out.items():
        print(f"left out: {sandbox_id}: {reason}", file=sys.stderr)  # noqa: T201
    return 0 if all(isinstance(reason, SandboxActive) for reason in left_out.values()) else 1


def summary(action: str, folder: Path, left_out: Collection[str]) -> str:
    """The line about the sandboxes that were saved or restored, and the size of their archives."""
    *_, sandboxes = _read_manifest(folder)
    done = [entry for sandbox_id, entry in sandboxes.items() if sandbox_id not in left_out]
    size = sum((folder / Path(entry["file"]).name).stat().st_size for entry in done)
    return (
        f"{DONE[action]} the files of {len(done)} {'sandbox' if len(done) == 1 else 'sandboxes'}, {size / 1e6:.1f} MB"
    )


def run(arguments: Sequence[str]) -> NoReturn:
    """Run one action as a program. Like all commands, it reports an error in one line."""
    try:
        sys.exit(main(*arguments))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - an operator gets one line, not a traceback
        fail(error, NAME)


if __name__ == "__main__":
    run(sys.argv[1:])

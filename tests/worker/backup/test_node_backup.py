"""Which sandboxes of a node are saved and restored, and why the others are left out."""

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from shared.backup import manifest
from shared.clock import now
from shared.db.database import Database
from shared.errors import Conflict, Invalid
from shared.models import Sandbox
from shared.sandboxes.desired_state import set_desired
from shared.states import Desired, PauseKind, Status
from tests.factories import NODE_ID, ApiUser, make_node, make_sandbox
from worker.backup.__main__ import MANIFEST, NodeBackup, summary
from worker.backup.archives import Archive, Limits
from worker.backup.files import NodeFiles
from worker.engine.protocol import DiskKind
from worker.settings import WorkerSettings


@dataclass
class FilesInMemory:
    """Files of sandboxes by name."""

    found: dict[str, bytes] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    saved: list[str] = field(default_factory=list)
    while_saving: Callable[[], None] = lambda: None

    def is_inactive(self, name: str) -> bool:
        return name not in self.running

    def exist(self, name: str) -> bool:
        return name in self.found

    def size(self, name: str) -> int:
        return len(self.found[name])

    def save(self, name: str, target: Path, _limits: Limits) -> tuple[DiskKind, Archive]:
        self.saved.append(name)
        path = target / f"{name}.folder.tar"
        path.write_bytes(self.found[name])
        self.while_saving()
        return DiskKind.PLAIN, Archive(path.name, len(self.found[name]), manifest.digest(path))

    def restore(self, name: str, _kind: DiskKind, archive: Path, labels: Mapping[str, str]) -> None:
        assert labels["agent-workspace.installation"] == "installation"
        self.found[name] = archive.read_bytes()


@pytest.fixture
def files() -> FilesInMemory:
    return FilesInMemory()


@pytest.fixture
def paused(database: Database, user: ApiUser, files: FilesInMemory) -> Sandbox:
    row = make_sandbox(database, user, status=Status.PAUSED, pause_kind=PauseKind.STOPPED)
    files.found[f"aw-{row.id}"] = b"files"
    return row


def backup_of(
    database: Database, files: FilesInMemory, node: str = NODE_ID, installation: str = "installation"
) -> NodeBackup:
    return NodeBackup(database, WorkerSettings(node=node), installation, cast("NodeFiles", files))


def test_sandboxes_at_rest_are_saved_and_restored(
    database: Database, user: ApiUser, paused: Sandbox, files: FilesInMemory, tmp_path: Path
) -> None:
    running = make_sandbox(database, user)
    lively = make_sandbox(database, user, status=Status.PAUSED)
    files.running.add(f"aw-{lively.id}")
    other = make_node(database, "other")
    make_sandbox(database, user, status=Status.PAUSED, node_id=other.id)
    left_out = backup_of(database, files).save(tmp_path / "backup")
    assert {name: str(reason) for name, reason in left_out.items()} == {
        running.id: "it is RUNNING: pause or stop it first",
        lively.id: "its processes run: pause or stop it first",
    }
    assert list(json.loads((tmp_path / "backup" / MANIFEST).read_text())["sandboxes"]) == [paused.id]

    files.found.clear()
    assert backup_of(database, files).restore(tmp_path / "backup") == {}
    assert files.found == {f"aw-{paused.id}": b"files"}
    again = backup_of(database, files).restore(tmp_path / "backup")
    assert [str(reason) for reason in again.values()] == ["it has files here already, which were not touched"]


def test_smallest_sandboxes_are_saved_first(
    database: Database, user: ApiUser, files: FilesInMemory, tmp_path: Path
) -> None:
    """One sandbox with huge files must not use up the disk space that the others need."""
    rows = [make_sandbox(database, user, status=Status.PAUSED, pause_kind=PauseKind.STOPPED) for _ in range(3)]
    names = [f"aw-{row.id}" for row in rows]
    files.found |= {name: b"x" * size for name, size in zip(names, (30, 10, 20), strict=True)}
    assert backup_of(database, files).save(tmp_path / "backup") == {}
    assert files.saved == [names[1], names[2], names[0]]


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (Status.PAUSED, "it was resumed during the backup"),
        (Status.RUNNING, "it is RUNNING: pause or stop it first"),
    ],
)
def test_sandbox_resumed_during_the_backup_is_skipped(
    database: Database, paused: Sandbox, files: FilesInMemory, tmp_path: Path, status: Status, reason: str
) -> None:
    def resume() -> None:
        with database.transaction() as session:
            row = session.get_one(Sandbox, paused.id)
            set_desired(session, row, Desired.RUNNING, due_at=now())
            row.status = status

    files.while_saving = resume
    left_out = backup_of(database, files).save(tmp_path / "backup")
    assert [str(why) for why in left_out.values()] == [reason]
    assert [path.name for path in (tmp_path / "backup").iterdir()] == [MANIFEST]


def test_restore_refuses_another_node_or_installation_and_damage(
    database: Database, paused: Sandbox, files: FilesInMemory, tmp_path: Path
) -> None:
    backup = tmp_path / "backup"
    backup_of(database, files).save(backup)
    with pytest.raises(Conflict, match="is not empty"):
        backup_of(database, files).save(backup)
    with pytest.raises(Invalid, match=f"is of the node {NODE_ID}, and this is other: set AW_NODE"):
        backup_of(database, files, node="other").restore(backup)
    with pytest.raises(Invalid, match="belongs to another installation"):
        backup_of(database, files, installation="another").restore(backup)
    files.found.clear()
    (backup / f"aw-{paused.id}.folder.tar").write_bytes(b"other")
    left_out = backup_of(database, files).restore(backup)
    assert [str(reason) for reason in left_out.values()] == [f"aw-{paused.id}.folder.tar is damaged"]
    (backup / MANIFEST).write_text("{")
    with pytest.raises(Invalid, match=r"files\.json is damaged"):
        backup_of(database, files).restore(backup)
    for text in ("[]", "{}", '{"node": "n", "installation": "i", "sandboxes": 1}'):
        (backup / MANIFEST).write_text(text)
        with pytest.raises(Invalid, match=r"files\.json is damaged: it names no node, installation or sandboxes"):
            backup_of(database, files).restore(backup)
    (backup / MANIFEST).unlink()
    for folder in (backup, backup / f"aw-{paused.id}.folder.tar"):
        with pytest.raises(Invalid, match="no complete backup"):
            backup_of(database, files).restore(folder)


def test_sandbox_that_was_deleted_is_not_restored(
    database: Database, paused: Sandbox, files: FilesInMemory, tmp_path: Path
) -> None:
    backup_of(database, files).save(tmp_path / "backup")
    files.found.clear()
    with database.transaction() as session:
        set_desired(session, session.get_one(Sandbox, paused.id), Desired.DELETED, due_at=now())
    left_out = backup_of(database, files).restore(tmp_path / "backup")
    assert [str(reason) for reason in left_out.values()] == ["the database has no such sandbox on this node"]
    assert files.found == {}


@pytest.mark.parametrize(
    "trouble", [OSError("the disk fails"), subprocess.TimeoutExpired("sync", 60), RecursionError()]
)
def test_failed_backup_of_one_sandbox_keeps_the_others(
    trouble: Exception, database: Database, user: ApiUser, paused: Sandbox, files: FilesInMemory, tmp_path: Path
) -> None:
    other = make_sandbox(database, user, status=Status.PAUSED, pause_kind=PauseKind.STOPPED)
    files.found[f"aw-{other.id}"] = b"files"

    def fail_once() -> None:
        files.while_saving = lambda: None
        raise trouble

    files.while_saving = fail_once
    left_out = backup_of(database, files).save(tmp_path / "backup")
    assert list(left_out.values()) == [trouble]
    saved = json.loads((tmp_path / "backup" / MANIFEST).read_text())["sandboxes"].keys()
    assert saved == {paused.id, other.id} - left_out.keys()


@pytest.mark.usefixtures("paused")
def test_backup_that_fails_leaves_its_folder_empty(database: Database, files: FilesInMemory, tmp_path: Path) -> None:
    """The same command can be repeated when the disk has room again."""

    def fail(*_arguments: object) -> None:
        raise OSError("the disk is full")

    (tmp_path / "backup").mkdir()
    backup = backup_of(database, files)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("worker.backup.__main__.replace_file", fail)
        with pytest.raises(OSError, match="full"):
            backup.save(tmp_path / "backup")
    assert list((tmp_path / "backup").iterdir()) == []
    assert backup.save(tmp_path / "backup") == {}


def test_damaged_backup_of_one_sandbox_does_not_prevent_the_restore_of_others(
    database: Database, user: ApiUser, paused: Sandbox, files: FilesInMemory, tmp_path: Path
) -> None:
    others = [make_sandbox(database, user, status=Status.PAUSED, pause_kind=PauseKind.STOPPED).id for _ in range(2)]
    files.found |= {f"aw-{name}": b"files" for name in others}
    backup_of(database, files).save(tmp_path / "backup")
    (tmp_path / "backup" / f"aw-{others[0]}.folder.tar").unlink()
    text = json.loads((tmp_path / "backup" / MANIFEST).read_text())
    del text["sandboxes"][others[1]]["kind"]
    (tmp_path / "backup" / MANIFEST).write_text(json.dumps(text))
    files.found.clear()
    left_out = backup_of(database, files).restore(tmp_path / "backup")
    assert isinstance(left_out.pop(others[0]), FileNotFoundError)
    assert str(left_out.pop(others[1])) == "its entry in files.json is damaged"
    assert (left_out, list(files.found)) == ({}, [f"aw-{paused.id}"])


def test_summary_has_the_size_of_what_was_restored(tmp_path: Path) -> None:
    sizes = {"a": 2_000_000, "b": 5_000_000}
    for name, size in sizes.items():
        (tmp_path / f"{name}.tar").write_bytes(bytes(size))
    sandboxes = {name: {"file": f"{name}.tar"} for name in sizes}
    (tmp_path / MANIFEST).write_text(json.dumps({"node": NODE_ID, "installation": "i", "sandboxes": sandboxes}))
    assert summary("restore", tmp_path, {"b": 0}) == "restored the files of 1 sandbox, 2.0 MB"
    assert summary("restore", tmp_path, sizes) == "restored the files of 0 sandboxes, 0.0 MB"

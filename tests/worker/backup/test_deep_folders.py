"""A sandbox with folders of any depth does not keep the others from being restored."""

import json
import os
import subprocess
from pathlib import Path
from typing import cast

import pytest

from shared.db.database import Database
from shared.models import Sandbox
from shared.states import PauseKind, Status
from tests.factories import NODE_ID, ApiUser, make_sandbox
from tests.worker.backup.engine_in_folders import EngineInFolders
from worker.backup import archives
from worker.backup.__main__ import MANIFEST, NodeBackup
from worker.backup.archives import ArchiveError, Limits
from worker.backup.files import NodeFiles
from worker.engine.disk_engine import DiskEngine
from worker.engine.protocol import DiskKind
from worker.settings import WorkerSettings

# The path is longer than the kernel accepts in one call, 4096 bytes. The folders that tar unpacks before it fails are
# more than Python's recursion limit, 1000.
NAME = "abc"
DEPTH = 1100


def nest(folder: Path) -> None:
    """Make folders in each other, each through the descriptor of the one above it."""
    above = os.open(folder, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir(NAME, dir_fd=above)
        below = os.open(NAME, os.O_RDONLY, dir_fd=above)
        os.close(above)
        above = below
    os.close(above)


def backed_up(backup: Path, sandbox: Sandbox, *, deep: bool = False) -> dict[str, str]:
    """Write the archive of a sandbox; return its entry in the manifest."""
    source = backup.parent / sandbox.id
    source.mkdir()
    (source / "file").touch()
    if deep:
        nest(source)
    archive = archives.pack(source, ".", backup / f"{sandbox.id}.tar", Limits())
    subprocess.run(["rm", "-rf", str(source)], check=True)  # pytest's own clean-up is recursive
    return {"kind": DiskKind.PLAIN, "file": archive.file, "sha256": archive.sha256}


@pytest.fixture
def sandboxes(database: Database, user: ApiUser) -> list[Sandbox]:
    return [make_sandbox(database, user, status=Status.PAUSED, pause_kind=PauseKind.STOPPED) for _ in range(2)]


def test_deep_folders_of_one_sandbox_do_not_prevent_the_backup_of_others(
    database: Database, sandboxes: list[Sandbox], tmp_path: Path
) -> None:
    backup, root = tmp_path / "backup", tmp_path / "engine"
    backup.mkdir()
    deep, ordinary = sandboxes
    entries = {deep.id: backed_up(backup, deep, deep=True), ordinary.id: backed_up(backup, ordinary)}
    text = {"node": NODE_ID, "installation": "installation", "sandboxes": entries}
    (backup / MANIFEST).write_text(json.dumps(text))

    files = NodeFiles(cast("DiskEngine", EngineInFolders(root)), "installation")
    left_out = NodeBackup(database, WorkerSettings(node=NODE_ID), "installation", files).restore(backup)
    assert [(name, type(error)) for name, error in left_out.items()] == [(deep.id, ArchiveError)]
    assert [str(path.relative_to(root)) for path in root.rglob("*")] == [
        f"aw-{ordinary.id}",
        f"aw-{ordinary.id}/_data",
        f"aw-{ordinary.id}/_data/file",
    ]

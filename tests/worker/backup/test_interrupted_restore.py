"""A restore of one sandbox's files that does not finish, beside an engine in memory."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from worker.backup import archives
from worker.backup.archives import ArchiveError
from worker.backup.files import NodeFiles
from worker.engine.disk_engine import DiskEngine
from worker.engine.protocol import ContainerState, ContainerStatus, DiskKind

NAME = "aw-1"


class EngineInFolders:
    """An engine whose volumes are folders."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = ContainerState.ABSENT

    def data_root(self) -> Path:
        return self.root

    def observe(self, _name: str) -> ContainerStatus:
        return ContainerStatus(self.state)

    def find_folder(self, name: str) -> Path | None:
        return self.root / name if (self.root / name).exists() else None

    def make_folder(self, name: str, _labels: Mapping[str, str]) -> Path:
        (self.root / name).mkdir(exist_ok=True)
        return self.root / name

    def remove(self, name: str) -> None:
        shutil.rmtree(self.root / name, ignore_errors=True)


@pytest.fixture
def engine(tmp_path: Path) -> EngineInFolders:
    (tmp_path / "engine").mkdir()
    return EngineInFolders(tmp_path / "engine")


@pytest.fixture
def files(engine: EngineInFolders) -> NodeFiles:
    return NodeFiles(cast("DiskEngine", engine), "installation")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_text("mine")
    archives.pack(tmp_path / "source", ".", tmp_path / "files.tar", 0)
    return tmp_path / "files.tar"


def test_interrupted_restore_leaves_nothing(
    files: NodeFiles, archive: Path, engine: EngineInFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "unpack", interrupt)
    with pytest.raises(KeyboardInterrupt):
        files.restore(NAME, DiskKind.PLAIN, archive, {})
    assert not files.exist(NAME)
    assert engine.find_folder(NAME) is None


def test_killed_restore_begins_again(
    files: NodeFiles, archive: Path, engine: EngineInFolders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(archives, "unpack", interrupt)
        killed.setattr(engine, "remove", interrupt)  # a killed process removes nothing
        with pytest.raises(KeyboardInterrupt):
            files.restore(NAME, DiskKind.PLAIN, archive, {})
    (engine.root / NAME / "half").touch()
    assert not files.exist(NAME)
    with pytest.raises(ArchiveError, match="restore it again"):
        files.save(NAME, tmp_path, 0)
    files.restore(NAME, DiskKind.PLAIN, archive, {})
    assert files.exist(NAME)
    assert [path.name for path in (engine.root / NAME).iterdir()] == ["file"]


def test_files_of_a_sandbox_that_was_started_meanwhile_stay(
    files: NodeFiles, archive: Path, engine: EngineInFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(archives, "unpack", interrupt)
        killed.setattr(engine, "remove", interrupt)
        with pytest.raises(KeyboardInterrupt):
            files.restore(NAME, DiskKind.PLAIN, archive, {})
    engine.state = ContainerState.EXITED
    assert files.exist(NAME)


def interrupt(*_arguments: object) -> None:
    raise KeyboardInterrupt

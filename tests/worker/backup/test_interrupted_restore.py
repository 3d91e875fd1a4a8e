"""A restore of a sandbox's files that is interrupted or refused, beside an engine in memory."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import pytest

from worker.backup import archives
from worker.backup.archives import ArchiveError, Limits
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
    archives.pack(tmp_path / "source", ".", tmp_path / "files.tar", Limits())
    return tmp_path / "files.tar"


def link(image: Path) -> None:
    image.symlink_to("/etc/hostname")


def add_folder(image: Path) -> None:
    image.touch()
    (image.parent / "folder").mkdir()
    (image.parent / "folder" / "file").touch()


def another_name(image: Path) -> None:
    image.with_name("another.img").touch()


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
        files.save(NAME, tmp_path, Limits())
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


@pytest.mark.parametrize("spoil", [link, add_folder, another_name])
def test_archive_of_anything_but_an_image_is_refused(
    spoil: Callable[[Path], None], engine: EngineInFolders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("worker.backup.files.missing_for", lambda _root: "")
    files = NodeFiles(cast("DiskEngine", engine), "installation")
    source = tmp_path / "image"
    source.mkdir()
    spoil(source / f"{NAME}.img")
    archives.pack(source, ".", tmp_path / "image.tar", Limits())
    with pytest.raises(ArchiveError, match="something other"):
        files.restore(NAME, DiskKind.IMAGE, tmp_path / "image.tar", {})
    assert not files.exist(NAME)
    assert list((engine.root / "agent-workspace" / "installation").iterdir()) == []


def interrupt(*_arguments: object) -> None:
    raise KeyboardInterrupt

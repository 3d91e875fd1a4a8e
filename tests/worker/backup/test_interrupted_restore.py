"""A restore of a sandbox's files that is interrupted or refused, beside an engine in memory."""

import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from tests.worker.backup.engine_in_folders import EngineInFolders
from worker.backup import archives
from worker.backup.archives import ArchiveError, Limits
from worker.backup.files import NodeFiles
from worker.engine.disk_engine import DiskEngine
from worker.engine.protocol import ContainerState, DiskKind

NAME = "aw-1"


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


def kill_restore(files: NodeFiles, archive: Path, engine: EngineInFolders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unpack a part of the files, and end as a killed process does, which removes nothing."""

    def unpack_half(_archive: Path, folder: Path) -> None:
        (folder / "half").touch()
        interrupt()

    with monkeypatch.context() as killed:
        killed.setattr(archives, "unpack", unpack_half)
        killed.setattr(engine, "remove", interrupt)
        killed.setattr("worker.backup.files._remove", lambda _draft: None)
        killed.setattr(Path, "rmdir", interrupt)
        with pytest.raises(KeyboardInterrupt):
            files.restore(NAME, DiskKind.PLAIN, archive, {})


def test_killed_restore_begins_again(
    files: NodeFiles, archive: Path, engine: EngineInFolders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kill_restore(files, archive, engine, monkeypatch)
    assert not files.exist(NAME)
    with pytest.raises(ArchiveError, match="restore it again"):
        files.save(NAME, tmp_path, Limits())
    files.restore(NAME, DiskKind.PLAIN, archive, {})
    assert files.exist(NAME)
    assert sorted(path.name for path in (engine.root / NAME).rglob("*")) == ["_data", "file"]


def test_files_of_a_sandbox_used_since_a_killed_restore_are_kept(
    files: NodeFiles, archive: Path, engine: EngineInFolders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The sandbox's container may be gone again. Its files are newer than those of the backup, and are saved."""
    kill_restore(files, archive, engine, monkeypatch)
    newer = engine.root / NAME / "_data" / "newer"
    newer.write_text("newer")
    for engine.state in (ContainerState.EXITED, ContainerState.ABSENT):
        assert files.exist(NAME)
        with pytest.raises(ArchiveError, match="not touched"):
            files.restore(NAME, DiskKind.PLAIN, archive, {})
        assert newer.read_text() == "newer"
    files.save(NAME, tmp_path, Limits())
    with tarfile.open(tmp_path / f"{NAME}.folder.tar") as saved:
        assert [each.name for each in saved if each.isfile()] == ["./newer"]


@pytest.mark.parametrize("kind", list(DiskKind))
def test_files_that_appear_during_a_restore_are_kept(
    kind: DiskKind, files: NodeFiles, archive: Path, engine: EngineInFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.backup.files.missing_for", lambda _root: "")
    newer = engine.root / NAME / "_data" / "newer"
    if kind == DiskKind.IMAGE:
        newer = engine.root / "agent-workspace" / "installation" / f"{NAME}.img"

    def unpack(_archive: Path, folder: Path) -> None:
        (folder / f"{NAME}.img").write_text("older")
        newer.write_text("newer")

    monkeypatch.setattr(archives, "unpack", unpack)
    with pytest.raises(ArchiveError, match="not touched"):
        files.restore(NAME, kind, archive, {})
    assert newer.read_text() == "newer"


def test_restored_image_is_on_disk_before_it_counts(
    files: NodeFiles, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[str, bool]] = []
    monkeypatch.setattr("worker.backup.files.missing_for", lambda _root: "")
    monkeypatch.setattr(archives, "unpack", lambda _archive, folder: (folder / f"{NAME}.img").touch())
    monkeypatch.setattr("worker.backup.files._flush", lambda _folder: steps.append(("flush", files.exist(NAME))))
    monkeypatch.setattr("worker.backup.files.sync_folder", lambda _folder: steps.append(("sync", files.exist(NAME))))
    files.restore(NAME, DiskKind.IMAGE, archive, {})
    assert steps == [("flush", False), ("sync", True)]


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

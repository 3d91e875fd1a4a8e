"""Archives of folders whose content a sandbox chose."""

import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from worker.backup import archives
from worker.backup.archives import ArchiveError, Limits

PIPE_BYTES = 64 * 1024


def test_archive_does_not_fill_the_disk(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 100_000)
    with pytest.raises(ArchiveError, match="too little free space"):
        archives.pack(tmp_path, "large", tmp_path / "large.tar", Limits(free_bytes=2**60))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large"]


def test_archive_has_a_limit(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 100_000)
    with pytest.raises(ArchiveError, match="AW_BACKUP_SANDBOX_BYTES, 90000 bytes"):
        archives.pack(tmp_path, "large", tmp_path / "large.tar", Limits(archive_bytes=90_000))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large"]
    assert archives.pack(tmp_path, "large", tmp_path / "large.tar", Limits(archive_bytes=200_000)).size > 100_000


def test_shrinking_free_space_stops_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "large").write_bytes(b"x" * 3 * archives.CHUNK)
    free = iter((3 * archives.CHUNK, 2 * archives.CHUNK, 1))
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=next(free)))
    with pytest.raises(ArchiveError, match="too little free space"):
        archives.pack(tmp_path, "large", tmp_path / "large.tar", Limits())


def test_archive_is_written_through_no_link(tmp_path: Path) -> None:
    """Root writes the archive, perhaps into a folder that all users can write to."""
    for name in ("files", "another"):
        (tmp_path / name).write_text(name)
    (tmp_path / "files.partial").symlink_to(tmp_path / "another")
    with pytest.raises(FileExistsError):
        archives.pack(tmp_path, "files", tmp_path / "files.tar", Limits())
    assert (tmp_path / "another").read_text() == "another"


def test_archive_of_a_missing_folder_fails(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="Cannot stat"):
        archives.pack(tmp_path, "missing", tmp_path / "missing.tar", Limits())
    assert list(tmp_path.iterdir()) == []


def test_output_of_tar_does_not_block_it(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(1000):
        os.mknod(folder / f"{number:0>200}", stat.S_IFSOCK | 0o600)
    assert archives.pack(folder, ".", tmp_path / "files.tar", Limits()).size < PIPE_BYTES
    archives.unpack(tmp_path / "files.tar", folder)


def test_tar_has_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "SECONDS", 0.1)
    os.mkfifo(tmp_path / "endless.tar")
    with pytest.raises(ArchiveError, match="ended after"):
        archives.unpack(tmp_path / "endless.tar", tmp_path)

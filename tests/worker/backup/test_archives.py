"""Archives of folders whose content a sandbox chose."""

import os
import stat
from pathlib import Path

import pytest

from worker.backup import archives
from worker.backup.archives import ArchiveError

PIPE_BYTES = 64 * 1024


def test_archive_does_not_fill_the_disk(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 100_000)
    with pytest.raises(ArchiveError, match="too little free space"):
        archives.pack(tmp_path, "large", tmp_path / "large.tar", 2**60)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large"]


def test_archive_of_what_is_missing_fails(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="Cannot stat"):
        archives.pack(tmp_path, "missing", tmp_path / "missing.tar", 0)
    assert list(tmp_path.iterdir()) == []


def test_what_tar_says_does_not_stop_it(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(1000):
        os.mknod(folder / f"{number:0>200}", stat.S_IFSOCK | 0o600)
    assert archives.pack(folder, ".", tmp_path / "files.tar", 0).size < PIPE_BYTES
    archives.unpack(tmp_path / "files.tar", folder)


def test_tar_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "SECONDS", 0.1)
    os.mkfifo(tmp_path / "endless.tar")
    with pytest.raises(ArchiveError, match="ended after"):
        archives.unpack(tmp_path / "endless.tar", tmp_path)

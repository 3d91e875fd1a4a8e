"""The files of a sandbox on a real engine: they are archived, and restored for a sandbox that has none."""

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fixtures.containers import started
from tests.services.engine import docker_engine
from worker.backup.archives import ArchiveError, Limits
from worker.backup.files import NodeFiles
from worker.engine.disk_engine import DiskEngine
from worker.engine.protocol import ContainerRequest, DiskKind

HOLE = 16 * 1024**2
WRITE = f"umask 077; cd /workspace/project; echo mine >file; ln -s file link; truncate -s {HOLE} /workspace/hole"
READ = "cat /workspace/project/link; stat -c '%a %u' /workspace/project/file; stat -c %s /workspace/hole"


@pytest.fixture
def engine(installation: str) -> Iterator[DiskEngine]:
    with docker_engine(installation) as engine:
        yield engine


@pytest.fixture
def files(engine: DiskEngine, installation: str) -> NodeFiles:
    return NodeFiles(engine, installation)


@pytest.mark.parametrize("kind", list(DiskKind))
def test_files_are_restored_for_a_sandbox_that_has_none(
    kind: DiskKind, engine: DiskEngine, files: NodeFiles, request_: ContainerRequest, tmp_path: Path
) -> None:
    wanted = replace(request_, disk_bytes=64 * 1024**2 if kind == DiskKind.IMAGE else 0, has_files=False)
    name = started(engine, wanted)
    assert not files.is_inactive(name)
    before = inside(name, f"{WRITE}; {READ}")
    engine.pause(name)  # what it has written may still be only in the kernel's memory
    assert files.is_inactive(name)
    found, archive = files.save(name, tmp_path, Limits())
    assert (found, (tmp_path / archive.file).stat().st_size) == (kind, archive.size)
    assert archive.size < HOLE
    assert 0 < files.size(name) < HOLE
    engine.remove(name)
    assert not files.exist(name)

    files.restore(name, kind, tmp_path / archive.file, request_.labels)
    assert files.exist(name)
    assert engine.observe(name).has_volume
    assert started(engine, replace(wanted, has_files=True)) == name
    assert inside(name, READ) == before == "mine\n600 10001\n16777216\n"


@pytest.mark.parametrize("kind", list(DiskKind))
def test_damaged_archive_leaves_no_files(
    kind: DiskKind,
    engine: DiskEngine,
    files: NodeFiles,
    request_: ContainerRequest,
    installation: str,
    tmp_path: Path,
) -> None:
    (tmp_path / "damaged").write_bytes(b"no archive" * 1000)
    with pytest.raises(ArchiveError, match="tar"):
        files.restore(request_.name, kind, tmp_path / "damaged", request_.labels)
    assert not files.exist(request_.name)
    assert engine.list_volumes(installation) == []


def inside(name: str, script: str) -> str:
    done = subprocess.run(["docker", "exec", name, "sh", "-c", script], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr

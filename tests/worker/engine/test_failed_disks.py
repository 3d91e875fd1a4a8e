"""Disks that the kernel makes read-only when the node's disk is full: they are found, and a restart repairs them."""

import errno
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from tests.drills.bounds import Bounds
from tests.drills.engine_listing import NAME_PREFIX
from tests.fixtures.containers import started
from tests.services.engine import TINY_IMAGE
from tests.services.private_engine import PrivateEngine, running_private_engine
from worker.engine import failed_disks
from worker.engine.disk_engine import DiskEngine
from worker.engine.disk_images import MIN_BYTES
from worker.engine.failed_disks import find_failed
from worker.engine.protocol import ContainerRequest

DISK_BYTES = 64 * 1024**2
MOUNT = "{id} 30 {device} / {folder}/_data rw,nosuid,nodev shared:9 - {kind} {source} {options}"


@pytest.fixture
def engine() -> Iterator[PrivateEngine]:
    with running_private_engine([TINY_IMAGE], disk_bytes=DISK_BYTES) as engine:
        yield engine


@pytest.fixture
def worker(engine: PrivateEngine, installation: str) -> Iterator[DiskEngine]:
    with closing(DiskEngine(engine.host, installation)) as worker:
        yield worker


def test_disk_that_failed_because_the_nodes_was_full_is_repaired_by_a_restart(
    worker: DiskEngine, engine: PrivateEngine, request_: ContainerRequest, installation: str
) -> None:
    began = time.time()
    bounds = Bounds(engine, installation, "node", IPv4Network("198.18.161.0/24"), 0, Path("/none"))
    name = started(worker, replace(request_, disk_bytes=MIN_BYTES, has_files=False))
    write(engine, name)
    assert worker.list_failed_disks() == frozenset()
    assert not bounds.lost_writes_until(name.removeprefix(NAME_PREFIX))
    engine.fill_disk()
    write(engine, name)
    engine.free_disk()
    assert "Read-only file system" in write(engine, name)
    assert worker.list_failed_disks() == {name}
    assert bounds.lost_writes_until(name.removeprefix(NAME_PREFIX))
    worker.stop(name, 0)
    worker.start(name)
    assert began <= bounds.lost_writes_until(name.removeprefix(NAME_PREFIX)) <= time.time() + 1
    assert worker.list_failed_disks() == frozenset()
    assert write(engine, name) == ""


def write(engine: PrivateEngine, name: str) -> str:
    """Write to the sandbox's disk, and wait until the kernel has written to the node's; return the errors."""
    script = 'cd /workspace/project && mkdir -p "$(cat /proc/sys/kernel/random/uuid)" && sync'
    try:
        return engine.docker("exec", name, "sh", "-c", script)
    except AssertionError as error:
        return str(error)


@pytest.mark.parametrize("state", ["emergency_ro", "ro"])
def test_failed_disks_are_distinguished_from_other_mounts(state: str) -> None:
    def mount(number: int, folder: str = "/my data/volumes", **fields: str) -> bytes:
        fields = {"kind": "ext4", "source": "/run/disks/1", "device": "7:1", "options": f"rw,discard,{state}"} | fields
        return MOUNT.format(id=number, folder=f"{folder}/aw-{number}".replace(" ", "\\040"), **fields).encode()

    mounts = [
        mount(1),
        mount(2, options="rw,discard"),
        mount(3, "/other/volumes"),
        mount(4, kind="nfs4", source="server:/files"),
        mount(5, device="8:1"),
        # Mounted read-only, which is not an error of the file system.
        mount(6).replace(b" rw,nosuid", b" ro,nosuid"),
        mount(7, options="rw").replace(b" rw,nosuid", b" ro,nosuid"),
        b"8 30 7:8 / /an\x0bother\xe2\x80\xa8one rw - ext4 /dev/loop8 rw",
        b"7 30 0:7 / /not\xff/utf-8 rw - tmpfs  rw",
        b"short",
    ]
    assert find_failed(b"\n".join(mounts), Path("/my data/volumes")) == {"aw-1"}


@pytest.mark.parametrize(
    ("error", "is_failed"),
    [(None, False), (errno.EROFS, True), (errno.EIO, True), (errno.EPERM, False), (errno.ENOENT, False)],
)
@pytest.mark.parametrize("count", [0, 1])
def test_disk_with_errors_is_written_to_where_linux_shows_no_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int | None, count: int, *, is_failed: bool
) -> None:
    def change_times(_path: Path, **_times: object) -> None:
        if error is not None:
            raise OSError(error, "")

    (tmp_path / "volumes" / "aw-1" / "_data").mkdir(parents=True)
    (tmp_path / "loop16").mkdir()
    (tmp_path / "loop16" / "errors_count").write_text(f"{count}\n")
    (tmp_path / "7:1").symlink_to("loop16")
    monkeypatch.setattr(failed_disks, "FILE_SYSTEMS", tmp_path)
    monkeypatch.setattr(failed_disks, "DEVICES", tmp_path)
    monkeypatch.setattr("os.utime", change_times)
    folder = f"{tmp_path}/volumes/aw-1"
    mounts = MOUNT.format(id=1, folder=folder, kind="ext4", source="", device="7:1", options="rw").encode()
    found = find_failed(mounts, tmp_path / "volumes")
    assert found == ({"aw-1"} if is_failed and count else set())

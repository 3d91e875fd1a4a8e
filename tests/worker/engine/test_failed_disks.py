"""Disks that the kernel makes read-only when the node's disk is full: they are found, and a restart repairs them."""

import subprocess
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
from worker.engine.disk_engine import DiskEngine
from worker.engine.disk_images import MIN_BYTES
from worker.engine.failed_disks import find_failed
from worker.engine.protocol import ContainerRequest

DISK_BYTES = 64 * 1024**2
MOUNT = "{id} 30 7:{id} / /data/volumes/{name}/_data rw,nosuid,nodev shared:9 - ext4 /dev/loop{id} {options}"


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
    bounds = Bounds(engine, installation, "node", IPv4Network("198.18.161.0/24"), 0, Path("/none"))
    name = started(worker, replace(request_, disk_bytes=MIN_BYTES, has_files=False))
    write(engine, name)
    assert worker.list_failed_disks() == frozenset()
    assert not bounds.has_lost_writes(name.removeprefix(NAME_PREFIX))
    engine.fill_disk()
    write(engine, name)
    engine.free_disk()
    assert "Read-only file system" in write(engine, name)
    assert worker.list_failed_disks() == {name}
    assert bounds.has_lost_writes(name.removeprefix(NAME_PREFIX))
    worker.stop(name, 0)
    worker.start(name)
    assert worker.list_failed_disks() == frozenset()
    assert write(engine, name) == ""


def write(engine: PrivateEngine, name: str) -> str:
    """Write to the sandbox's disk, and wait until the kernel has written to the node's; return the errors."""
    script = 'cd /workspace/project && mkdir -p "$(cat /proc/sys/kernel/random/uuid)" && sync'
    command = ["docker", "--host", engine.host, "exec", name, "sh", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize("state", ["emergency_ro", "ro"])
def test_failed_disks_are_distinguished_from_other_mounts(state: str) -> None:
    mounts = [
        MOUNT.format(id=1, name="aw-1", options="rw,discard"),
        MOUNT.format(id=2, name="aw-2", options=f"rw,discard,{state}"),
        f"3 30 0:3 / /proc/sys {state} - proc proc {state}",
        f"4 30 0:4 / /other/volumes/aw-4/_data rw - ext4 /dev/loop4 {state}",
        # Mounted read-only, which is not an error of the file system.
        MOUNT.format(id=5, name="aw-5", options="rw").replace(" rw,nosuid", " ro,nosuid"),
    ]
    assert find_failed("\n".join(mounts), Path("/data/volumes")) == {"aw-2"}

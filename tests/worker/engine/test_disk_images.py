"""Disk images as files, and their remains after a crash."""

import fcntl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deploy.engine_filter import disks as filter_module
from deploy.engine_filter.bodies import RequestRefused
from deploy.engine_filter.disks import DiskRoute
from deploy.engine_filter.requests import parse
from tests.worker.engine.scripted_engine import running_scripted_engine
from worker.engine import disk_images
from worker.engine import disks as module
from worker.engine.disk_images import DiskImages
from worker.engine.disks import DISK_SECONDS, ROUTE, find_disks
from worker.engine.docker_client import ClientPool
from worker.engine.docker_engine import INSTALLATION_LABEL
from worker.engine.protocol import DiskKind, EngineFailing
from worker.lease_renewer import begin

NAME = "aw-1"
SIZE = 32 * 1024**2


def test_incomplete_disk_left_by_a_crash_is_removed(tmp_path: Path) -> None:
    """The half-made disk may be all that a deleted sandbox has left: it is only removed if it is found."""
    images = DiskImages(tmp_path, "installation")
    images.folder.mkdir(parents=True)
    half_made = images.path(NAME).with_suffix(".new")
    half_made.touch()
    assert images.names() == [NAME]
    assert images.exists(NAME)
    images.remove(NAME)
    assert (images.names(), images.exists(NAME), half_made.exists()) == ([], False, False)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data root of an engine, on a machine that has no loop device left."""
    for each in (module, filter_module):
        monkeypatch.setattr(each, "missing_for", lambda _root: "loop devices")
    return tmp_path


def leave_image(root: Path) -> None:
    images = DiskImages(root, "installation")
    images.folder.mkdir(parents=True)
    images.path(NAME).touch()


def test_worker_that_starts_without_a_loop_device_still_knows_the_disks_of_its_node(root: Path) -> None:
    """Otherwise, until it restarts, new sandboxes would get no limit, and deleted sandboxes would leave their files."""
    with running_scripted_engine() as scripted:
        clients = ClientPool(scripted.host, 5)
        assert find_disks(scripted.host, clients, root, "installation").kind == DiskKind.PLAIN
        leave_image(root)
        found = find_disks(scripted.host, clients, root, "installation")
        clients.close()
    assert (found.kind, found.names(), found.exists(NAME)) == (DiskKind.IMAGE, [NAME], True)


def test_engine_filter_without_a_loop_device_still_knows_the_disks_of_its_node(root: Path) -> None:
    leave_image(root)
    route = DiskRoute("installation", lambda _path: {"DockerRootDir": str(root)})
    assert route.execute(parse("GET", ROUTE, b"", "")) == {"names": [NAME]}


@pytest.mark.parametrize(("method", "body"), [("PUT", b"{}"), ("PUT", b'{"bytes": 1}'), ("DELETE", b"")])
def test_disk_of_another_installation_is_left_alone(
    root: Path, monkeypatch: pytest.MonkeyPatch, method: str, body: bytes
) -> None:
    """All installations of a machine share the folder in which the engine looks for disks by the names of volumes."""
    for name in ("attach", "make", "remove"):
        monkeypatch.setattr(DiskImages, name, lambda *_arguments: None)
    leave_image(root)
    labels = {INSTALLATION_LABEL: "another"}
    objects: dict[str, dict[str, Any]] = {"/info": {"DockerRootDir": str(root)}, f"/volumes/{NAME}": {"Labels": labels}}
    route, request = DiskRoute("installation", objects.__getitem__), parse(method, f"{ROUTE}/{NAME}", body, "")
    with pytest.raises(RequestRefused, match="does not belong to this installation"):
        route.execute(request)
    labels[INSTALLATION_LABEL] = "installation"
    assert route.execute(request) == {}


# --- while another request holds the lock -----------------------------------------------------------------------------


@contextmanager
def holding_lock(images: DiskImages) -> Iterator[None]:
    """Hold the lock, as a format on a busy disk does."""
    images.folder.mkdir(parents=True, exist_ok=True)
    with (images.folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a request waits for the lock. Programs for disks do nothing."""
    waits, lock = threading.Event(), fcntl.flock

    def flock(file: int, operation: int) -> None:
        waits.set()
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(disk_images, "_run", lambda *_arguments, **_options: "")
    monkeypatch.setattr(DiskImages, "attach", lambda _self, _name: None)
    return waits


def test_disk_that_a_concurrent_request_created_is_kept(tmp_path: Path, waits: threading.Event) -> None:
    """The first request's client may have given up, and a second one's sandbox may run on the disk already."""
    images = DiskImages(tmp_path, "installation")
    with holding_lock(images):
        waits.clear()
        delayed = begin(lambda: images.make(NAME, SIZE))
        assert waits.wait(10)
        images.path(NAME).touch()
        made = images.path(NAME).stat().st_ino
    delayed.result(10)
    assert images.path(NAME).stat().st_ino == made


def test_abandoned_removal_is_not_executed(
    tmp_path: Path, waits: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sandbox's next run uses the disk, as its worker takes the removal for a failed one."""
    programs = 3 * disk_images.SHORT_SECONDS  # umount, and losetup twice
    assert disk_images.LOCK_SECONDS + programs < DISK_SECONDS
    monkeypatch.setattr(disk_images, "LOCK_SECONDS", 0.1)
    images = DiskImages(tmp_path, "installation")
    with holding_lock(images):
        images.path(NAME).touch()
        waits.clear()
        removal = begin(lambda: images.remove(NAME))
        assert waits.wait(10)
        with pytest.raises(EngineFailing):
            removal.result(10)
    assert images.exists(NAME)

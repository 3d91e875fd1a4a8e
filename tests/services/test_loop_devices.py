"""Disks that an engine leaves attached are detached before an unmount hides their files."""

import subprocess
from pathlib import Path

from shared.ids import new_id
from tests.services.data_disk import data_disk
from tests.services.directories import short_directory
from tests.waiting import eventually
from worker.engine.disk_images import DEVICES, MIN_BYTES, DiskImages


def test_disks_of_a_killed_run_are_detached_with_its_directory() -> None:
    with short_directory("disks") as directory:
        data = directory / "data"
        data.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "aw-engine", data], check=True)
        name = attach_one(data)
    assert_detached(name)


def test_disks_of_an_engine_that_did_not_stop_are_detached_with_its_data() -> None:
    with short_directory("disks") as directory, data_disk(directory / "data", 2 * MIN_BYTES):
        name = attach_one(directory / "data")
    assert_detached(name)


def attach_one(data: Path) -> str:
    """Make a sandbox's disk; return its name."""
    name = f"aw-{new_id()}"
    DiskImages(data, "test-disks").make(name, MIN_BYTES)
    assert is_attached(name)
    return name


def assert_detached(name: str) -> None:
    assert eventually(lambda: not is_attached(name))  # the detach ends when udev has closed the device
    assert not (DEVICES / name).is_symlink()


def is_attached(name: str) -> bool:
    """Whether a loop device has the disk, whatever is left of the image's path."""
    found = subprocess.run(["losetup", "--noheadings", "--output", "BACK-FILE"], capture_output=True, check=True)
    return name.encode() in found.stdout

"""A private engine leaves nothing on the machine."""

import subprocess

from shared.ids import new_id
from tests.services.private_engine import PrivateEngine
from worker.engine.disk_images import DEVICES, MIN_BYTES, DiskImages


def test_disks_are_detached_when_an_engine_is_cleared(engine: PrivateEngine) -> None:
    name = f"aw-{new_id()}"
    images = DiskImages(engine.data, "test-disks")
    images.make(name, MIN_BYTES)
    command = ["losetup", "--associated", str(images.folder / f"{name}.img")]
    assert subprocess.run(command, capture_output=True, check=True).stdout
    engine.clear()
    assert subprocess.run(command, capture_output=True, check=True).stdout == b""
    assert images.names() == []
    assert not (DEVICES / name).is_symlink()

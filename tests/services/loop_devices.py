"""Loop devices of sandboxes' disks. They outlive the engine, its directory, and the mount of their files."""

import subprocess
from contextlib import suppress
from pathlib import Path

from worker.engine.disk_images import DEVICES, LOOPS


def detach_below(directory: Path) -> None:
    """Detach the devices of files in the directory, and remove the links to them.

    Call it before an unmount: afterwards, the device keeps the disk's memory, and its file has no path to find it by.
    """
    for device in LOOPS.glob("loop*/loop"):
        if (image := _backing_file(device)) and image.is_relative_to(directory):
            _detach(device, image)


def _detach(device: Path, image: Path) -> None:
    path = Path("/dev", device.parent.name)
    # While the device is open, its number is not used again. Otherwise, it might be another run's since.
    with suppress(OSError), path.open("rb"):
        if _backing_file(device) == image:
            subprocess.run(["losetup", "--detach", path], capture_output=True, check=False)
            (DEVICES / image.stem).unlink(missing_ok=True)


def _backing_file(device: Path) -> Path | None:
    with suppress(OSError):  # not attached
        return Path((device / "backing_file").read_text().rstrip("\n"))
    return None

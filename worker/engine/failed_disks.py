"""Disks that reject every write: the node's disk was full, or failed, when the kernel wrote a sandbox's files to it.

An image is a sparse file, so the kernel learns that the node's disk is full only after a program's write has succeeded.
The file system then aborts its journal, and rejects every write until it is mounted again, also once there is space.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
FILE_SYSTEMS, DEVICES = Path("/sys/fs/ext4"), Path("/sys/dev/block")
# What Linux shows for such a file system: `ro` before 6.12, nothing from 6.12 to 6.14, and `emergency_ro` since.
READ_ONLY = {"emergency_ro", "ro"}
REJECTED = (errno.EROFS, errno.EIO, errno.ESHUTDOWN)
# The major number of loop devices.
LOOP = "7:"


def find_failed(mounts: bytes, volumes: Path) -> frozenset[str]:
    """The names of the volumes on loop devices that reject every write.

    Where Linux shows only that there was an error, root checks whether the disk can be written to. Without root, such a
    disk is not found.

    Args:
        mounts: the contents of `/proc/self/mountinfo`.
        volumes: the folder of the engine's volumes, without symbolic links.
    """
    return frozenset(
        folder.parent.name
        for folder, device, options in _list_disks(mounts, volumes)
        if not READ_ONLY.isdisjoint(options) or (_has_errors(device) and _rejects_writes(folder))
    )


def _list_disks(mounts: bytes, volumes: Path) -> Iterator[tuple[Path, str, list[str]]]:
    """The mount point, the device, and the options of each disk mounted for writing (proc_pid_mountinfo(5))."""
    for line in map(os.fsdecode, mounts.split(b"\n")):
        mount, _, file_system = line.partition(" - ")
        if not file_system.startswith("ext4 "):
            continue
        _, _, device, _, point, own_options, *_ = mount.split(" ")
        folder, options = Path(point.replace("\\040", " ")), file_system.rpartition(" ")[2]
        is_disk = device.startswith(LOOP) and folder.name == "_data" and folder.parent.parent == volumes
        if is_disk and "ro" not in own_options.split(","):
            yield folder, device, options.split(",")


def _has_errors(device: str) -> bool:
    """Whether the kernel has found an error in the file system since its last check with e2fsck."""
    try:
        name = (DEVICES / device).resolve().name
        return int((FILE_SYSTEMS / name / "errors_count").read_text()) > 0
    except (OSError, ValueError):
        return False


def _rejects_writes(folder: Path) -> bool:
    try:
        found = folder.stat()
        os.utime(folder, ns=(found.st_atime_ns, found.st_mtime_ns))
    except OSError as error:
        return error.errno in REJECTED
    return False

"""Disks that the kernel has made read-only: the node's disk was full, or failed, when a sandbox's files were written.

An image is a sparse file, so the kernel learns that the node's disk is full only after a program's write has succeeded.
The file system then ends its journal, and rejects every write until it is mounted again, also once there is space.
"""

from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
# Kernels from 6.15 on show the first, older ones the second.
READ_ONLY = {"emergency_ro", "ro"}


def find_failed(mounts: str, volumes: Path) -> frozenset[str]:
    """The names of the volumes whose file system is read-only, although it was mounted for writing.

    Args:
        mounts: the contents of `/proc/self/mountinfo`.
        volumes: the folder of the engine's volumes.
    """
    found = (_read_mount(line) for line in mounts.splitlines())
    return frozenset(
        point.parent.name
        for point, options in found
        if point.name == "_data" and point.parent.parent == volumes and not READ_ONLY.isdisjoint(options)
    )


def _read_mount(line: str) -> tuple[Path, list[str]]:
    """The mount point, and the options of the file system, not those of this mount (proc_pid_mountinfo(5))."""
    mount, _, file_system = line.partition(" - ")
    return Path(mount.split()[4]), file_system.split()[2].split(",")

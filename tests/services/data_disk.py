"""Disks in memory for the data of engines."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.services.loop_devices import detach_below

# Enough for the containers of an engine, and for images that it can't link.
ENOUGH_MEMORY = 4 * 1024**3


@contextmanager
def data_disk(data: Path, size: int = 0, *, in_memory: bool = True) -> Iterator[None]:
    """Mount a disk in memory for the data of an engine, which waits for its disk at each step of a container.

    Args:
        data: the directory of the data, which does not exist yet.
        size: the disk's size in bytes; 0: half of the memory.
        in_memory: False, or too little memory: without a `size`, the data is on the machine's disk.
    """
    if not size and not (in_memory and _free_memory() >= ENOUGH_MEMORY):
        yield
        return
    data.mkdir()
    limit = ["-o", f"size={size}"] if size else []
    subprocess.run(["mount", "-t", "tmpfs", *limit, "aw-engine", data], check=True, capture_output=True)
    try:
        yield
    finally:
        detach_below(data)
        subprocess.run(["umount", "--lazy", data], check=True, capture_output=True)


def _free_memory() -> int:
    """The memory, in bytes, that new programs could use without swapping."""
    found = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(found["MemAvailable"].split()[0]) * 1024

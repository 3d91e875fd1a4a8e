"""Limits of this machine's kernel that all sandboxes share, raised so that a sandbox meets its own limits first.

Some limits apply to each user, and all sandboxes run as the same user; the others apply to the machine. Decision 82
says what each value costs, and what bounds a sandbox instead.
"""

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

log = structlog.get_logger()

ROOT = Path("/proc/sys")
# This file exists if control groups of version 2 limit memory: only they count the memory of sockets.
VERSION_2 = Path("/sys/fs/cgroup/cgroup.controllers")
# For limits of resources that also count towards a container's own limits of memory or processes.
UNLIMITED = 2**31 - 1
AT_LEAST = {
    "fs.aio-max-nr": UNLIMITED,
    "fs.epoll.max_user_watches": UNLIMITED,
    "fs.file-max": UNLIMITED,
    "fs.inotify.max_user_instances": UNLIMITED,
    "fs.inotify.max_user_watches": UNLIMITED,
    "fs.pipe-user-pages-soft": UNLIMITED,
    # The kernel's own maximum: enough for 2,000 sandboxes with the default limit of processes.
    "kernel.pid_max": 2**22,
    # Twice the number of addresses in the largest network of sandboxes: one sandbox can look all of them up.
    "net.ipv4.neigh.default.gc_thresh2": 2**16,
    "net.ipv4.neigh.default.gc_thresh3": 2**17,
}
# Limits for which 0 means that there is none.
ZERO_IS_NONE = ("fs.pipe-user-pages-soft",)
# Limits of the memory of sockets, in pages: above the first number, the kernel watches it; above the second, it reduces
# buffers; above the third, it refuses them. They are set as fractions of the machine's memory.
OF_SOCKETS = ("net.ipv4.tcp_mem", "net.ipv4.udp_mem")
PARTS_OF_MEMORY = (1 / 4, 3 / 8, 1 / 2)


@dataclass(frozen=True)
class LowLimit:
    """A limit that is lower than sandboxes need."""

    # As `sysctl` names it.
    name: str
    found: tuple[int, ...]
    needed: tuple[int, ...]

    def __str__(self) -> str:
        """The limit as an argument of `sysctl`."""
        return f"{self.name}={' '.join(map(str, self.needed))}"


def find_low(root: Path = ROOT) -> list[LowLimit]:
    """The limits that are too low. Limits that this kernel lacks, or hides from a container, are left out."""
    return [low for name, least in _needs() if (low := _compare(root, name, least)) is not None]


def raise_low(root: Path = ROOT) -> None:
    """Raise the limits that are too low, and log those that this process may not change. None is ever lowered."""
    low = find_low(root)
    failed = [each for each in low if not _write(root, each)]
    if raised := [str(each) for each in low if each not in failed]:
        log.info("kernel_limits_raised", limits=raised)
    if failed:
        log.warning("kernel_limits_low", advice=fix_command(failed))


def fix_command(low: Sequence[LowLimit]) -> str:
    return f"as root of the machine: sysctl -w {' '.join(shlex.quote(str(each)) for each in low)}"


def _needs() -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from ((name, (least,)) for name, least in AT_LEAST.items())
    if VERSION_2.exists():
        pages = os.sysconf("SC_PHYS_PAGES")
        yield from ((name, tuple(int(pages * part) for part in PARTS_OF_MEMORY)) for name in OF_SOCKETS)


def _compare(root: Path, name: str, least: tuple[int, ...]) -> LowLimit | None:
    try:
        found = tuple(map(int, _path(root, name).read_text().split()))
    except (OSError, ValueError):
        return None
    if len(found) != len(least) or (found == (0,) and name in ZERO_IS_NONE):
        return None
    needed = tuple(map(max, zip(found, least, strict=True)))
    return LowLimit(name, found, needed) if needed != found else None


def _write(root: Path, low: LowLimit) -> bool:
    try:
        _path(root, low.name).write_text(" ".join(map(str, low.needed)))
    except OSError:
        return False
    return True


def _path(root: Path, name: str) -> Path:
    return root / name.replace(".", "/")

"""Disk images: each sandbox's files in a file system of their own, with a limit of bytes and of inodes (decision 55).

An image is a sparse file with ext4 on a loop device. The engine mounts the device as the sandbox's volume, by a link in
a folder that a reboot empties: so it can't mount a device that another file got since. This needs root on the
engine's machine.
"""

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from shared.observability import failpoints
from worker.engine.protocol import DiskKind, EngineFailing

# Links to loop devices, by the name of the volume. The engine and the engine filter know them.
DEVICES = Path("/run/agent-workspace/disks")
LOOPS = Path("/sys/block")
PROGRAMS = ("mke2fs", "debugfs", "losetup")
# Suffixes of a complete image, and of an unfinished one.
IMAGE, BEGUN = ".img", ".new"
MIN_BYTES, MAX_BYTES = 16 * 1024**2, 16 * 1024**4
BYTES_PER_INODE = 16 * 1024
# A journal of 4 MB, the smallest: it keeps the file system consistent when the machine crashes.
JOURNAL = ("-J", "size=4")
# Blocks of the file are written when they are used, and not before. The reserved blocks are root's, so that the engine
# can write a sandbox's configuration to a full disk.
LAYOUT = ("-O", "^resize_inode", "-m", "0.1", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard")
# `discard`: space that the sandbox frees is free on the node, too.
MOUNT_OPTIONS = "discard,noinit_itable,nosuid,nodev"
SECONDS = 30
# Timeout of programs that end at once, and of the wait for the lock. With them, a removal takes less time than a worker
# waits for its response (`worker.engine.disks.DISK_SECONDS`): a later one could hit the disk of the sandbox's next run.
SHORT_SECONDS, LOCK_SECONDS = 4, 15
LOCK_POLL_SECONDS = 0.05


def volume_options(name: str) -> dict[str, str]:
    """The options of the engine's local volume driver that mount a sandbox's disk."""
    return {"type": "ext4", "device": str(DEVICES / name), "o": MOUNT_OPTIONS}


def missing_for(root: Path) -> str:
    """What this process lacks for disk images of the engine whose data root is `root`; empty: nothing."""
    if os.geteuid() != 0:
        return "root's rights"
    if not (root / "volumes").is_dir():
        return f"the engine's data root {root}"
    if lacking := [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]:
        return f"the program {lacking[0]}"
    try:
        _run("losetup", "--find")
    except EngineFailing:
        return "loop devices"
    return ""


class DiskImages:
    """The disk images of one installation on one engine. All methods are idempotent, and safe across processes.

    All methods raise EngineFailing.
    """

    kind = DiskKind.IMAGE

    def __init__(self, root: Path, installation: str) -> None:
        """Keep images on the disk of the engine's data root."""
        self.folder = root / "agent-workspace" / installation

    def names(self) -> list[str]:
        """The names of the sandboxes that have an image, or an unfinished one that a crash has left."""
        return sorted({path.stem for path in self.folder.glob("*.*") if path.suffix in (IMAGE, BEGUN)})

    def exists(self, name: str) -> bool:
        """Whether the sandbox has an image, finished or not."""
        return self.path(name).exists() or self._begun(name).exists()

    def path(self, name: str) -> Path:
        """Where a sandbox's image is, or would be."""
        return self.folder / f"{name}{IMAGE}"

    def make(self, name: str, size: int) -> None:
        """Make an image of `size` bytes, unless the sandbox has one, and attach it."""
        if not self.path(name).exists():
            with self._locked():
                if not self.path(name).exists():  # another request may have made it while this one waited
                    self._format(name, min(max(size, MIN_BYTES), MAX_BYTES))
        self.attach(name)

    def attach(self, name: str) -> None:
        """Attach a loop device to the sandbox's image, if it has an image without one: after a reboot, for example."""
        if self._is_attached(name) or not self.path(name).exists():
            return
        with self._locked(), failpoints.around("disk.attach"):
            device = _run("losetup", "--find", "--show", "--nooverlap", str(self.path(name)))
            DEVICES.mkdir(parents=True, exist_ok=True)
            link = DEVICES / f".{name}"
            link.unlink(missing_ok=True)
            link.symlink_to(device)
            link.rename(DEVICES / name)

    def remove(self, name: str) -> None:
        """Detach the image and remove it. A device that is still mounted is detached with its mount."""
        if not self.exists(name):
            return
        with self._locked():
            self._unmount(name)
            (DEVICES / name).unlink(missing_ok=True)
            for device in self._devices(name):
                with suppress(EngineFailing):  # the unmount has just detached it
                    _run("losetup", "--detach", device, seconds=SHORT_SECONDS)
            self.path(name).unlink(missing_ok=True)
            self._begun(name).unlink(missing_ok=True)

    def _unmount(self, name: str) -> None:
        """Unmount a disk that the engine has left mounted, because it miscounted the mounts of the volume."""
        folder = self.folder.parent.parent / "volumes" / name / "_data"
        if folder.is_mount():
            with suppress(EngineFailing):
                _run("umount", "--lazy", str(folder), seconds=SHORT_SECONDS)

    def _devices(self, name: str) -> list[str]:
        columns = ("--noheadings", "--output", "NAME")
        return _run("losetup", *columns, "--associated", str(self.path(name)), seconds=SHORT_SECONDS).split()

    def _begun(self, name: str) -> Path:
        return self.folder / f"{name}{BEGUN}"

    def _format(self, name: str, size: int) -> None:
        new = self._begun(name)
        new.unlink(missing_ok=True)
        with failpoints.around("disk.format"):
            with new.open("wb") as file:
                file.truncate(size)
            _run("mke2fs", "-q", "-F", "-t", "ext4", *JOURNAL, *LAYOUT, "-i", str(BYTES_PER_INODE), str(new))
            # The engine copies the folders of the container's image only to an empty volume.
            _run("debugfs", "-w", "-R", "rmdir lost+found", str(new))
        new.rename(self.path(name))

    def _is_attached(self, name: str) -> bool:
        try:
            device = (DEVICES / name).readlink().name
            return (LOOPS / device / "loop" / "backing_file").read_text().rstrip("\n") == str(self.path(name))
        except OSError:
            return False

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as file:
            _lock(file)
            yield


def _lock(file: TextIO) -> None:
    """Wait for the lock, but for less time than the request's client waits for its response."""
    ends_at = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > ends_at:
                raise EngineFailing(f"other requests have held the lock on the disks for {LOCK_SECONDS} s") from None
        time.sleep(LOCK_POLL_SECONDS)


def _run(program: str, *arguments: str, seconds: float = SECONDS) -> str:
    command = [program, *arguments]
    try:
        done = subprocess.run(  # noqa: S603 (no shell; names are checked)
            command, capture_output=True, text=True, timeout=seconds, check=False, env={"PATH": _path(), "LC_ALL": "C"}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineFailing(f"{program}: {type(error).__name__}") from None
    if done.returncode != 0:
        raise EngineFailing(f"{program}: {done.stderr.strip()[-300:]}")
    return done.stdout.strip()


def _path() -> str:
    return "/usr/sbin:/sbin:/usr/bin:/bin"

"""Archives of sandboxes' files: streamed GNU tar archives, not compressed, which keep the holes of sparse files.

A sandbox decides how large its files are, so an archive is aborted before it fills the disk that it is written to.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import IO

CHUNK = 1024 * 1024
# Timeout of tar for one sandbox: enough for about 1 TB.
SECONDS = 4 * 3600
# Number of the last bytes of tar's output that an error quotes.
TAIL = 300
# Keep owners by number, ACLs and capabilities, so that a sandbox's programs see the same files after a restore.
KEEP = ("--numeric-owner", "--xattrs", "--xattrs-include=*", "--acls")


class ArchiveError(Exception):
    """An archive was not written, or not unpacked; the message says why."""


class SandboxActive(ArchiveError):
    """The sandbox runs, or was resumed: a backup skips it."""


@dataclass(frozen=True)
class Archive:
    file: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Limits:
    """Limits that keep one sandbox from filling the disk of a backup."""

    # Bytes that stay free on the disk of the archives.
    free_bytes: int = 0
    # The size of one archive; 0: no limit.
    archive_bytes: int = 0

    def check(self, size: int, chunk: bytes, folder: Path) -> None:
        """Check that an archive of this size in this folder may grow by a chunk.

        Raises:
            ArchiveError: it would exceed a limit.
        """
        if self.archive_bytes and size + len(chunk) > self.archive_bytes:
            raise ArchiveError(f"its archive has more than AW_BACKUP_SANDBOX_BYTES, {self.archive_bytes} bytes")
        if shutil.disk_usage(folder).free - len(chunk) < self.free_bytes:
            raise ArchiveError("the disk of the backup has too little free space")


def pack(folder: Path, member: str, path: Path, limits: Limits) -> Archive:
    """Write a file or a folder into an archive.

    Args:
        member: its name in `folder`; `.` for everything in `folder`.
        path: the archive, which appears only when it is complete.

    Raises:
        ArchiveError: the archive would be too large, the disk would be full, or tar failed. No archive is left.
    """
    draft = path.with_suffix(".partial")
    command = ["--create", "--sparse", "--one-file-system", *KEEP, f"--directory={folder}", "--", member]
    try:
        with _tar(*command) as tar:
            size, digest = _copy(tar, draft, limits)
        draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return Archive(path.name, size, digest)


def unpack(path: Path, folder: Path) -> None:
    """Unpack an archive into a folder.

    Raises:
        ArchiveError: tar failed.
    """
    command = ["--extract", "--sparse", "--preserve-permissions", *KEEP, f"--file={path}"]
    with _tar(*command, f"--directory={folder}"):
        pass


@contextmanager
def _tar(*arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run tar for the length of the block, then wait for its end.

    Its messages go to a file, because a sandbox can cause any number of them, and a full pipe would block tar.
    """
    command = ["tar", "--warning=no-file-ignored", *arguments]
    with (
        tempfile.TemporaryFile() as messages,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=messages) as tar,  # noqa: S603
    ):
        deadline = Timer(SECONDS, tar.kill)
        deadline.start()
        try:
            yield tar
            if (status := tar.wait()) != 0:
                raise ArchiveError(f"tar: {_tail(messages) if status > 0 else f'it was ended after {SECONDS} s'}")
        finally:
            deadline.cancel()
            tar.kill()


def _tail(messages: IO[bytes]) -> str:
    messages.seek(max(0, messages.seek(0, os.SEEK_END) - TAIL))
    return messages.read(TAIL).decode(errors="replace").strip()


def _copy(tar: "subprocess.Popen[bytes]", draft: Path, limits: Limits) -> tuple[int, str]:
    """Copy tar's output to the draft, within the limits; return its size and its digest."""
    size, digest = 0, hashlib.sha256()
    output = tar.stdout
    with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        while output and (chunk := output.read(CHUNK)):
            limits.check(size, chunk, draft.parent)
            size += len(chunk)
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return size, digest.hexdigest()

"""The files of sandboxes beside one engine, as a folder of the engine or as a disk image."""

import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from shared.backup.manifest import sync_folder
from worker.backup import archives
from worker.backup.archives import Archive, ArchiveError, Limits
from worker.engine.disk_engine import DiskEngine
from worker.engine.disk_images import DiskImages, missing_for
from worker.engine.protocol import ContainerState, DiskKind

# The timeout of requests to the engine that copy nothing: seconds.
SYNC_SECONDS = 60
# Millions of small files: seconds.
COUNT_SECONDS = 600
# Bytes of a block in `st_blocks`.
BLOCK = 512


class NodeFiles:
    """The files of this node's sandboxes. Only root beside the engine can use it."""

    def __init__(self, engine: DiskEngine, installation: str) -> None:
        self._engine = engine
        self._images = DiskImages(engine.data_root(), installation)

    def at_rest(self, name: str) -> bool:
        """Whether no process of the sandbox runs, so that its files stay as they are."""
        return self._engine.observe(name).state != ContainerState.RUNNING

    def exist(self, name: str) -> bool:
        """Whether the sandbox has files here. Those of an unfinished restore do not count."""
        if self._is_unfinished(name):
            return False
        return self._images.exists(name) or self._engine.find_folder(name) is not None

    def size(self, name: str) -> int:
        """The size of the sandbox's files in bytes; 0: it has none here. If counting fails: more than all others."""
        if self._images.exists(name):
            return self._images.path(name).stat().st_blocks * BLOCK
        folder = self._engine.find_folder(name)
        return 0 if folder is None else _count(folder)

    def save(self, name: str, target: Path, limits: Limits) -> tuple[DiskKind, Archive]:
        """Write an archive of a sandbox's files.

        Raises:
            ArchiveError: it has no files here, or only a part of them, or they can't be written.
        """
        if self._is_unfinished(name):
            raise ArchiveError("its restore did not finish: restore it again")
        folder = self._engine.find_folder(name)
        if self._images.exists(name):
            _flush(folder)
            image = self._images.path(name)
            path = target / f"{name}.image.tar"
            return DiskKind.IMAGE, archives.pack(image.parent, image.name, path, limits)
        if folder is None:
            raise ArchiveError("it has no files on this node")
        return DiskKind.PLAIN, archives.pack(folder, ".", target / f"{name}.folder.tar", limits)

    def restore(self, name: str, kind: DiskKind, archive: Path, labels: Mapping[str, str]) -> None:
        """Restore the files of an archive for a sandbox that has none here.

        Raises:
            ArchiveError: the archive can't be unpacked. The sandbox has no files then.
        """
        if kind == DiskKind.IMAGE:
            self._restore_image(name, archive)
            return
        if self._is_unfinished(name):
            self._engine.remove(name)
        with self._unfinished(name):
            folder = self._engine.make_folder(name, labels)
            archives.unpack(archive, folder)
            _flush(folder)

    @contextmanager
    def _unfinished(self, name: str) -> Iterator[None]:
        """Mark a volume that is being filled, so that a restore that was killed can be repeated."""
        self._make_private_folder()
        marker = self._marker(name)
        marker.touch(mode=0o600)
        sync_folder(marker.parent)
        try:
            yield
        except BaseException:
            self._engine.remove(name)
            marker.unlink()
            raise
        marker.unlink()

    def _is_unfinished(self, name: str) -> bool:
        # A worker that was started too early may have created a container: its user may have new files then.
        return self._marker(name).exists() and self._engine.observe(name).state == ContainerState.ABSENT

    def _marker(self, name: str) -> Path:
        return self._images.folder / f".restoring-{name}"

    def _make_private_folder(self) -> None:
        self._images.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._images.folder.chmod(0o700)

    def _restore_image(self, name: str, archive: Path) -> None:
        if lacking := missing_for(self._engine.data_root()):
            raise ArchiveError(f"this machine lacks {lacking} for disk images")
        draft = self._images.folder / ".restoring"
        self._make_private_folder()
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        try:
            archives.unpack(archive, draft)
            _only_file(draft, self._images.path(name).name).rename(self._images.path(name))
        finally:
            shutil.rmtree(draft)


def _only_file(folder: Path, name: str) -> Path:
    """The image that an archive has. A link would make the engine mount another file of this machine."""
    path = folder / name
    if [found.name for found in folder.iterdir()] != [name] or not stat.S_ISREG(path.lstat().st_mode):
        raise ArchiveError(f"its archive is damaged: it has something other than {name}")
    return path


def _count(folder: Path) -> int:
    command = ["du", "--summarize", "--one-file-system", "--block-size=1", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=COUNT_SECONDS)  # noqa: S603
    except subprocess.SubprocessError:
        return sys.maxsize
    return int(done.stdout.split()[0])


def _flush(folder: Path | None) -> None:
    """Write what the kernel still holds of a mounted disk image into the image."""
    if folder is not None and folder.is_dir():
        subprocess.run(["sync", "--file-system", str(folder)], check=True, timeout=SYNC_SECONDS)  # noqa: S603, S607

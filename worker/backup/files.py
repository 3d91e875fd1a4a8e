"""The files of sandboxes beside one engine, as a folder of the engine or as a disk image."""

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

# Timeout of `sync`, in seconds.
SYNC_SECONDS = 60
# Timeout of counting the sizes of a sandbox's files, in seconds: there may be millions of small ones.
COUNT_SECONDS = 600
# Bytes of a block in `st_blocks`.
BLOCK = 512


class NodeFiles:
    """Access to the files of this node's sandboxes, which needs root's rights on the engine's machine."""

    def __init__(self, engine: DiskEngine, installation: str) -> None:
        self._engine = engine
        self._images = DiskImages(engine.data_root(), installation)

    def is_inactive(self, name: str) -> bool:
        """Whether no process of the sandbox runs, so that its files stay as they are."""
        return self._engine.observe(name).state != ContainerState.RUNNING

    def exist(self, name: str) -> bool:
        """Whether the sandbox has files here. An empty volume that no container uses does not count."""
        if self._images.exists(name) or self._engine.observe(name).state != ContainerState.ABSENT:
            return True
        folder = self._engine.find_folder(name)
        return folder is not None and folder.exists() and any(folder.iterdir())

    def size(self, name: str) -> int:
        """The size of the sandbox's files in bytes; 0: it has none here; `sys.maxsize`: they could not be counted."""
        if self._images.exists(name):
            return self._images.path(name).stat().st_blocks * BLOCK
        folder = self._engine.find_folder(name)
        return 0 if folder is None else _count(folder)

    def save(self, name: str, target: Path, limits: Limits) -> tuple[DiskKind, Archive]:
        """Write an archive of a sandbox's files.

        Raises:
            ArchiveError: the sandbox has no files here, or only a part of them, or the archive can't be written.
        """
        folder = self._engine.find_folder(name)
        if folder is not None and not self.exist(name):
            raise ArchiveError("it has no files on this node: if its restore did not finish, restore it again")
        if self._images.exists(name):
            _flush(folder)
            image = self._images.path(name)
            path = target / f"{name}.image.tar"
            return DiskKind.IMAGE, archives.pack(image.parent, image.name, path, limits)
        if folder is None:
            raise ArchiveError("it has no files on this node")
        return DiskKind.PLAIN, archives.pack(folder, ".", target / f"{name}.folder.tar", limits)

    def restore(self, name: str, kind: DiskKind, archive: Path, labels: Mapping[str, str]) -> None:
        """Restore the files of an archive for a sandbox that has none here. They appear all at once.

        Raises:
            ArchiveError: the archive can't be unpacked, which leaves the sandbox without files; or the sandbox already
                has files here, which are not touched.
        """
        if kind == DiskKind.IMAGE:
            self._restore_image(name, archive)
        else:
            self._restore_folder(name, archive, labels)

    def _restore_folder(self, name: str, archive: Path, labels: Mapping[str, str]) -> None:
        folder = self._engine.make_folder(name, labels)
        try:
            with _drafted(_draft(folder)) as draft:
                archives.unpack(archive, draft)
                _flush(draft)
                self._require_none(name)
                # A rename replaces only an empty folder, not the files of a container created in the meantime.
                draft.rename(folder)
                sync_folder(folder.parent)
        except BaseException:
            self._remove_empty(name, folder)
            raise

    def _restore_image(self, name: str, archive: Path) -> None:
        if lacking := missing_for(self._engine.data_root()):
            raise ArchiveError(f"this machine lacks {lacking} for disk images")
        self._images.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._images.folder.chmod(0o700)
        with _drafted(self._images.folder / ".restoring") as draft:
            archives.unpack(archive, draft)
            image = _only_file(draft, self._images.path(name).name)
            _flush(draft)
            self._require_none(name)
            self._images.path(name).hardlink_to(image)  # unlike a rename, it never replaces an image
            sync_folder(self._images.folder)

    def _require_none(self, name: str) -> None:
        """Check again that there are no files: unpacking takes long, and a worker may have been started too early."""
        if self.exist(name):
            raise ArchiveError("it has files here already, which were not touched")

    def _remove_empty(self, name: str, folder: Path) -> None:
        """Remove a volume, unless a container uses it by now, or has used it."""
        if self._engine.observe(name).state != ContainerState.ABSENT:
            return
        try:
            folder.rmdir()
        except OSError:
            return
        self._engine.remove(name)


def _draft(folder: Path) -> Path:
    """Where a volume's files are unpacked: beside its own folder, on the same disk, where the engine mounts nothing."""
    return folder.with_name(".restoring")


@contextmanager
def _drafted(draft: Path) -> Iterator[Path]:
    """Create a folder, in place of that of a killed restore; remove it after the block if it still exists."""
    _remove(draft)
    draft.mkdir(mode=0o700)
    try:
        yield draft
    finally:
        _remove(draft)


def _remove(draft: Path) -> None:
    """Remove a folder, of any depth: a sandbox decides how deep its folders are, and `shutil.rmtree` calls itself."""
    command = ["rm", "-rf", "--one-file-system", "--", str(draft)]
    subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - `mkdir` fails if anything is left


def _only_file(folder: Path, name: str) -> Path:
    """The image from an archive. A link is refused: it would make the engine mount another file of this machine."""
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
    """Write the kernel's cached data of a folder's file system, such as a mounted disk image, to the disk."""
    if folder is not None and folder.is_dir():
        subprocess.run(["sync", "--file-system", str(folder)], check=True, timeout=SYNC_SECONDS)  # noqa: S603, S607

"""The Docker Engine with a disk for each sandbox, if this worker can have disk images created."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import structlog

from shared.observability import failpoints
from worker.engine.disk_images import volume_options
from worker.engine.disks import Disks, find_disks
from worker.engine.docker_client import find_object, idempotent
from worker.engine.docker_engine import (
    DISPLACED,
    INSTALLATION_LABEL,
    READ_SECONDS,
    SANDBOX_LABEL,
    DockerEngine,
    own_name,
)
from worker.engine.failed_disks import MOUNTS, find_failed
from worker.engine.protocol import (
    ACT_SECONDS,
    ContainerRequest,
    ContainerState,
    ContainerStatus,
    DiskKind,
    EngineFailing,
    EngineRefused,
)

log = structlog.get_logger()

# Docker's message for a volume whose mounts it has miscounted.
MISCOUNTED = "volume has active mounts"


class DiskEngine(DockerEngine):
    """A Docker Engine. A sandbox that has a plain volume keeps it; a sandbox that has a disk keeps its size."""

    def __init__(self, base_url: str, installation: str, data_dir: str = "") -> None:
        """Connect lazily to `base_url`.

        Args:
            data_dir: a folder on the disk with the engine's data; empty: the engine's own data root.
        """
        super().__init__(base_url)
        self._base_url, self._installation, self._data_dir = base_url, installation, data_dir
        self._found: Disks | None = None

    def disk_kind(self) -> DiskKind:
        return self._disks.kind

    def free_bytes(self) -> int | None:
        """The free space of the disk with the engine's data; None if this machine does not have its folder."""
        try:
            return shutil.disk_usage(self._data_dir or self.data_root()).free
        except OSError:
            return None

    def list_failed_disks(self) -> frozenset[str]:
        if self._disks.kind != DiskKind.IMAGE:
            return frozenset()
        return find_failed(MOUNTS.read_bytes(), (self.data_root() / "volumes").resolve())

    def runtimes(self) -> frozenset[str]:
        if not self.info:
            self.read_id()
        return frozenset(self.info.get("Runtimes") or ())

    def observe(self, name: str) -> ContainerStatus:
        """Inspect a sandbox's container and volume.

        Without a container, a disk alone counts as the volume, and the record of a volume whose disk is gone does not.

        Raises:
            EngineFailing: another sandbox's container has this name, and keeps it.
        """
        found = self._observe_own(name)
        if found.state == ContainerState.ABSENT and found.has_volume and self._restore_name(name):
            found = super().observe(name)
        if found.state != ContainerState.ABSENT:
            return found
        is_on_disk = self._disks.exists(name)
        return replace(found, has_volume=is_on_disk or (found.has_volume and not self._needs_disk(name)))

    def _observe_own(self, name: str) -> ContainerStatus:
        """Inspect the container after another sandbox's container has lost this name, which something else gave it."""
        found = super().observe(name)
        if (owned_name := _find_own_name(name, found)) == name:
            return found
        log.warning("container_displaced", container=owned_name, found=name)
        with self._clients.acquire(READ_SECONDS) as api:
            for free_name in (owned_name, owned_name + DISPLACED):
                with idempotent():
                    api.rename(found.container_id, free_name)
                    break
        found = super().observe(name)
        if _find_own_name(name, found) != name:
            raise EngineFailing(f"the container {name} is {owned_name}'s: rename it with docker rename")
        return found

    def _restore_name(self, name: str) -> bool:
        """Undo the renaming of a container by something else: a second container would run on the same files.

        Returns:
            Whether there was such a container.
        """
        wanted = [f"{INSTALLATION_LABEL}={self._installation}", f"{SANDBOX_LABEL}={name.partition('-')[2]}"]
        with self._clients.acquire(READ_SECONDS) as api:
            found = api.containers(all=True, filters={"label": wanted})
            if len(found) != 1:
                return False
            log.warning("container_renamed_back", container=name, found=found[0]["Names"])
            with idempotent():
                api.rename(found[0]["Id"], name)
        return True

    def create(self, request: ContainerRequest, seconds: int = ACT_SECONDS) -> None:
        """Create, adopt or replace the container, with a disk if it needs one."""
        super().create(self._with_disk(request), seconds)

    def start(self, name: str) -> None:
        self._disks.attach(name)
        super().start(name)

    def put_file(self, name: str, path: str, content: bytes) -> None:
        self._disks.attach(name)
        super().put_file(name, path, content)

    def has_new_files(self, name: str) -> bool:
        """Compare the times of folders, on the sandbox's disk."""
        self._disks.attach(name)
        return super().has_new_files(name)

    def remove(self, name: str) -> None:
        """Remove the container, its volume and its disk."""
        try:
            super().remove(name)
        except EngineFailing as error:
            # After a failed mount (after a reboot), Docker counts one unmount too many, and can't remove the volume
            # until it is restarted. The files are on the disk. After the restart, the resync removes the record.
            if MISCOUNTED not in str(error) or not self._needs_disk(name):
                raise
            log.warning("volume_record_left", volume=name, cure="restart the Docker Engine")
        if self._disks.exists(name):
            with failpoints.around("disk.remove"):
                self._disks.remove(name)

    def list_volumes(self, installation: str) -> list[str]:
        """List the volumes of this installation, and the disks without a volume."""
        found = super().list_volumes(installation)
        return sorted({*found, *self._disks.names()}) if installation == self._installation else found

    def data_root(self) -> Path:
        """The folder of the engine's data, which may be on another machine."""
        if not self.info:
            self.read_id()
        return Path(self.info["DockerRootDir"])

    def find_folder(self, name: str) -> Path | None:
        """Return the folder where the engine keeps or mounts a volume's files; None if there is no volume."""
        with self._clients.acquire(READ_SECONDS) as api:
            volume = find_object(api.inspect_volume, name)
        return None if volume is None else Path(volume["Mountpoint"])

    def make_folder(self, name: str, labels: Mapping[str, str]) -> Path:
        """Create a volume without a limit; return the folder where the engine keeps its files."""
        with self._clients.acquire(ACT_SECONDS) as api, failpoints.around("engine.create_volume"):
            return Path(api.create_volume(name, labels=dict(labels))["Mountpoint"])

    def _with_disk(self, request: ContainerRequest) -> ContainerRequest:
        options = self._volume_options(request.name)
        if options is None and (not request.disk_bytes or self._disks.kind == DiskKind.PLAIN):
            return request
        if options is not None and options.get("device") != volume_options(request.name)["device"]:
            return request
        if options is not None and request.has_files and not self._disks.exists(request.name):
            raise EngineRefused(f"the disk image of {request.name} is missing, and with it the sandbox's files")
        with failpoints.around("disk.create"):
            self._disks.make(request.name, request.disk_bytes)
        return replace(request, volume_options=volume_options(request.name))

    def _needs_disk(self, name: str) -> bool:
        """Whether the sandbox's volume, if there is one, has its files on a disk."""
        options = self._volume_options(name) or {}
        return options.get("device") == volume_options(name)["device"]

    def _volume_options(self, name: str) -> Mapping[str, str] | None:
        """The options of the sandbox's volume; None if there is no volume."""
        with self._clients.acquire(READ_SECONDS) as api:
            volume = find_object(api.inspect_volume, name)
        return None if volume is None else volume["Options"] or {}

    @property
    def _disks(self) -> Disks:
        if self._found is None:
            self._found = find_disks(self._base_url, self._clients, self.data_root(), self._installation)
        return self._found


def _find_own_name(name: str, found: ContainerStatus) -> str:
    """The name that a container's labels give it; without a container, whose labels are a volume's, the name itself."""
    return name if found.state == ContainerState.ABSENT else own_name(found.labels, name)

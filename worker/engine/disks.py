"""A worker's access to disk images: with its own rights, through the engine filter, or not at all."""

from pathlib import Path
from typing import Any

from worker.engine.disk_images import DiskImages, missing_for
from worker.engine.docker_client import ClientPool
from worker.engine.protocol import DiskKind, EngineFailing

# Timeout of the engine filter's response.
DISK_SECONDS = 30
# Timeout of the first request, which a heartbeat waits for.
PROBE_SECONDS = 5
# A route of the engine filter (deploy/engine_filter/disks.py).
ROUTE = "/agent-workspace/disks"
NOT_FOUND = 404
OK = 200
SERVER_ERROR = 500
UNIX = "unix://"


class NoDisks:
    """A node without disk images: its sandboxes have plain volumes."""

    kind = DiskKind.PLAIN

    def names(self) -> list[str]:
        return []

    def exists(self, _name: str) -> bool:
        return False

    def make(self, name: str, _size: int) -> None:
        """Fail: the sandbox's volume needs a disk that this worker can't attach any more."""
        raise EngineFailing(f"{name} has its files on a disk image, and this worker has no right to attach it")

    def attach(self, _name: str) -> None:
        """Do nothing."""

    def remove(self, _name: str) -> None:
        """Do nothing."""


class FilteredDisks:
    """Disk images that the engine filter manages, which runs as root."""

    kind = DiskKind.IMAGE

    def __init__(self, clients: ClientPool) -> None:
        """Reach the filter through the clients of the engine."""
        self._clients = clients

    def names(self) -> list[str]:
        return list(self._request("GET")["names"])

    def exists(self, name: str) -> bool:
        return bool(self._request("GET", name)["exists"])

    def make(self, name: str, size: int) -> None:
        self._request("PUT", name, size)

    def attach(self, name: str) -> None:
        self._request("PUT", name, 0)

    def remove(self, name: str) -> None:
        self._request("DELETE", name)

    def _request(self, method: str, name: str = "", size: int | None = None) -> dict[str, Any]:
        with self._clients.acquire(DISK_SECONDS) as api:
            url = f"{api.base_url}{ROUTE}" + (f"/{name}" if name else "")
            response = api.request(method, url, json=None if size is None else {"bytes": size}, timeout=DISK_SECONDS)
        if response.status_code != OK:
            raise EngineFailing(f"status {response.status_code}: {response.text[:500]}")
        found: dict[str, Any] = response.json()
        return found


# The disk images of an engine, as `DiskImages` documents them. All methods raise EngineUnavailable.
Disks = DiskImages | FilteredDisks | NoDisks


def find_disks(base_url: str, clients: ClientPool, root: Path, installation: str) -> Disks:
    """Return this worker's access to disk images.

    Raises:
        EngineUnavailable: the engine does not respond, or fails: another attempt may succeed.
    """
    if not base_url.startswith(UNIX):
        return NoDisks()
    with clients.acquire(PROBE_SECONDS) as api:
        status = api.request("GET", f"{api.base_url}{ROUTE}", timeout=PROBE_SECONDS).status_code
    if status >= SERVER_ERROR:
        raise EngineFailing(f"status {status} in response to the disk image request")
    if status == OK:
        return FilteredDisks(clients)
    images = DiskImages(root, installation)
    if status == NOT_FOUND and (not missing_for(root) or images.names()):
        return images  # operations that need what is missing fail, so that no sandbox with a disk gets a plain volume
    return NoDisks()

"""The filter's own route: disk images, which need root's rights (decision 55).

`GET /agent-workspace/disks` lists them, `PUT …/{name}` creates one and attaches it, `DELETE …/{name}` removes it. All
belong to the filter's installation, and none has the name of another installation's volume. A worker chooses only their
size.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deploy.engine_filter.bodies import NAME, RequestRefused, disk_body
from deploy.engine_filter.requests import Request
from worker.engine.disk_images import DiskImages, missing_for
from worker.engine.disks import ROUTE
from worker.engine.docker_engine import INSTALLATION_LABEL

TARGET = re.compile(rf"{ROUTE}(?:/(?P<name>{NAME.pattern}))?")


class DiskRoute:
    """The disk images of one installation; the engine's data root is read once."""

    def __init__(self, installation: str, inspect: Callable[[str], dict[str, Any] | None]) -> None:
        self._installation, self._inspect = installation, inspect
        self._images: DiskImages | None = None

    @staticmethod
    def serves(request: Request) -> bool:
        """Whether the request is for this route, and not for the engine."""
        return request.path.startswith(ROUTE)

    def execute(self, request: Request) -> dict[str, Any]:
        """Execute a request, and return the content of its response.

        Raises:
            RequestRefused: workers do not make this request, or this machine can't have disk images.
            EngineFailing: a program for disks failed.
        """
        found = TARGET.fullmatch(request.path)
        if found is None or request.query:
            raise RequestRefused("workers do not make this request")
        images, name = self._find(), found["name"]
        if request.method != "GET":
            self._require_own(name)
        match request.method, name:
            case "GET", None:
                return {"names": images.names()}
            case "GET", str():
                return {"exists": images.exists(name)}
            case "PUT", str():
                size = disk_body(request.body)
                images.make(name, size) if size else images.attach(name)
            case "DELETE", str():
                images.remove(name)
            case _:
                raise RequestRefused("workers do not make this request")
        return {}

    def _require_own(self, name: str) -> None:
        """Check that no other installation has the volume: all share the folder that names the engine's devices."""
        labels = (self._inspect(f"/volumes/{name}") or {}).get("Labels") or {}
        if labels.get(INSTALLATION_LABEL, self._installation) != self._installation:
            raise RequestRefused("it does not belong to this installation")

    def _find(self) -> DiskImages:
        if self._images is None:
            root = Path((self._inspect("/info") or {})["DockerRootDir"])
            images = DiskImages(root, self._installation)
            if (lacking := missing_for(root)) and not images.names():
                raise RequestRefused(f"the filter lacks {lacking} for disk images")
            self._images = images
        return self._images

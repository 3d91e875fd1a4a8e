"""A deployment under its earlier name and with its earlier arguments, for the drills until they use `Deployment`."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tests.services.client import Client
from tests.services.deployment import Deployment, Engine, deployed

__all__ = ["Client", "Service", "installed_service"]


@dataclass(frozen=True)
class _Reached:
    host: str
    gateway: str
    address: str


class Service(Deployment):
    """A deployment beside one engine."""

    def __init__(self, directory: Path, *, docker_host: str, gateway: str, address: str, **options: Any) -> None:
        super().__init__(directory, _Reached(docker_host, gateway, address), **options)


def installed_service(
    database_url: str, broker_url: str, engine: Engine, installation: str = "test-service"
) -> AbstractContextManager[Service]:
    """A deployment beside an engine, not started."""
    found = deployed(engine, database_url=database_url, broker_url=broker_url, installation=installation)
    return cast("AbstractContextManager[Service]", found)

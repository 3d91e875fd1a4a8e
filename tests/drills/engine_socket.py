"""Listings of an engine's containers and volumes by its API, because a poll by the docker command costs 17 ms of CPU.

The checks of the nightly tests and of chaos use the docker command (`engine_listing`).
"""

from typing import Any

import httpx

from tests.drills.engine_listing import LABELS, Container, Holdings, Volume
from tests.services import http


class EngineSocket:
    """A client of the Engine API.

    Args:
        host: the engine's address, `unix://` and the socket's path.
    """

    def __init__(self, host: str) -> None:
        # Keep no connection open between requests, so the caller need not close the client.
        limits = httpx.Limits(max_keepalive_connections=0)
        transport = httpx.HTTPTransport(uds=host.removeprefix("unix://"), limits=limits, verify=http.NO_CERTIFICATES)
        self._client = httpx.Client(transport=transport, base_url="http://engine", timeout=30, trust_env=False)

    def holdings(self) -> Holdings:
        """List every container and volume.

        Raises:
            TransportError, HTTPStatusError: the engine does not respond.
        """
        containers = [_container(found) for found in self._get("/containers/json?all=1")]
        volumes = [Volume(found["Name"], _labels(found)) for found in self._get("/volumes")["Volumes"] or ()]
        return Holdings(tuple(containers), tuple(volumes))

    def addresses(self, network: str, label: str = "") -> dict[str, str]:
        """The address of each running container in a network, by name; `label`: only of containers with this label.

        Each container is inspected. An engine whose disk was full lists outdated states and addresses.

        Raises:
            TransportError, HTTPStatusError: the engine does not respond.
        """
        found = (self._inspect(each["Id"]) for each in self._get("/containers/json?all=1"))
        kept = [each for each in found if each and (not label or label in (each["Config"]["Labels"] or ()))]
        places = {each["Name"].removeprefix("/"): each["NetworkSettings"]["Networks"].get(network, {}) for each in kept}
        return {name: place["IPAddress"] for name, place in places.items() if place.get("IPAddress")}

    def _inspect(self, container: str) -> dict[str, Any] | None:
        response = self._client.get(f"/containers/{container}/json")
        if response.status_code == 404:  # removed since it was listed
            return None
        inspected: dict[str, Any] = response.raise_for_status().json()
        return inspected

    def _get(self, path: str) -> Any:
        return self._client.get(path).raise_for_status().json()


def _container(found: dict[str, Any]) -> Container:
    # A container that is being removed may have no name.
    name = next(iter(found["Names"] or ()), "")
    return Container(name.removeprefix("/"), found["State"], _labels(found))


def _labels(found: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = found["Labels"] or {}
    return {name: labels[name] for name in LABELS if labels.get(name)}

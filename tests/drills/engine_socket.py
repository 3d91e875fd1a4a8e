"""What an engine holds, asked over its socket: for polls, as the command line takes a hundred times as much processor.

A verdict that all is well rests on `engine_listing`.
"""

from typing import Any

import httpx

from tests.drills.engine_listing import LABELS, Container, Holdings, Volume


class EngineSocket:
    """An engine's own interface.

    Args:
        host: its address, `unix://` and the socket's path.
    """

    def __init__(self, host: str) -> None:
        # A connection for each question: the engine is killed now and then, and nobody has to close this one.
        limits = httpx.Limits(max_keepalive_connections=0)
        transport = httpx.HTTPTransport(uds=host.removeprefix("unix://"), limits=limits)
        self._client = httpx.Client(transport=transport, base_url="http://engine", timeout=30, trust_env=False)

    def holdings(self) -> Holdings:
        """Every container and volume.

        Raises:
            TransportError, HTTPStatusError: the engine does not answer.
        """
        containers = [_container(found) for found in self._get("/containers/json?all=1")]
        volumes = [Volume(found["Name"], _labels(found)) for found in self._get("/volumes")["Volumes"] or ()]
        return Holdings(tuple(containers), tuple(volumes))

    def _get(self, path: str) -> Any:
        return self._client.get(path).raise_for_status().json()


def _container(found: dict[str, Any]) -> Container:
    return Container(found["Names"][0].removeprefix("/"), found["State"], _labels(found))


def _labels(found: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = found["Labels"] or {}
    return {name: labels[name] for name in LABELS if labels.get(name)}

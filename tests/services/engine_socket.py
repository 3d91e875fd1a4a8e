"""Plain requests to an engine's socket, and the filter in front of it."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from deploy.engine_filter.bodies import Policy
from deploy.engine_filter.network import NetworkRoute
from deploy.engine_filter.proxy import EngineFilter
from tests.services.directories import short_directory

VERSION = "/v1.41"
SECONDS = 60
OK, NO_CONTENT, NOT_FOUND = 200, 204, 404


@dataclass(frozen=True)
class Response:
    """The status and the body of a response."""

    status: int
    body: bytes

    def read(self) -> Any:
        """The body, as JSON."""
        return json.loads(self.body)


class EngineSocket:
    """A client that sends any request, as a program with the worker's rights could."""

    def __init__(self, host: str) -> None:
        self._path = host.removeprefix("unix://")

    def send(self, method: str, target: str, body: Any = None, *, version: str = VERSION) -> Response:
        """Send a request. `body` is bytes, or an object that is encoded as JSON."""
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        connection = HTTPConnection("engine")
        connection.sock = self.connect()
        try:
            connection.request(method, version + target, content, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return Response(response.status, response.read())
        finally:
            connection.close()

    def read(self, target: str) -> Any:
        """The body of the response to a GET.

        Raises:
            AssertionError: the engine refuses the request.
        """
        found = self.send("GET", target)
        assert found.status == OK, found.body
        return found.read()

    def remove(self, target: str, *, unless: bytes | None = None) -> None:
        """Send a DELETE; ignore a 404, and a refusal with the words `unless`.

        Raises:
            AssertionError: the engine refuses the request.
        """
        found = self.send("DELETE", target)
        is_ignored = unless is not None and unless in found.body
        assert is_ignored or found.status in (OK, NO_CONTENT, NOT_FOUND), found.body

    def connect(self) -> socket.socket:
        """Open a connection."""
        found = socket.socket(socket.AF_UNIX)
        found.settimeout(SECONDS)
        found.connect(self._path)
        return found


@contextmanager
def running_engine_filter(engine_host: str, policy: Policy, network: NetworkRoute | None = None) -> Iterator[str]:
    """Run a filter in front of an engine, for the length of the block; yield its socket's URL."""
    with short_directory("filter") as directory:
        path = directory / "docker.sock"
        with EngineFilter(path, engine_host.removeprefix("unix://"), policy, network) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.05,))
            thread.start()
            try:
                yield f"unix://{path}"
            finally:
                server.shutdown()
                thread.join()

"""A proxy on a unix socket. It takes one request per connection, and forwards the response until either side closes."""

import json
import select
import socket
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

import structlog

from deploy.engine_filter.bodies import Policy, RequestRefused
from deploy.engine_filter.disks import DiskRoute
from deploy.engine_filter.network import NetworkRoute
from deploy.engine_filter.requests import Request, RuleContext, admit, parse
from worker.engine.protocol import EngineFailing
from worker.network.firewall import ROUTE, FirewallError

log = structlog.get_logger()

MAX_BODY_BYTES = 4 * 1024 * 1024
# Timeout of the engine's response to an inspection, and of a worker's silence in the middle of a request.
SECONDS = 30
CHUNK = 65536


class EngineFilter(ThreadingMixIn, UnixStreamServer):
    """Listens on one socket, and forwards requests that the policy allows to the engine's."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, path: Path, engine: str, policy: Policy, network: NetworkRoute | None = None) -> None:
        """Replace the socket at `path`; only its owner may use it until its mode is changed.

        Its folder is created if it is missing: a reboot empties `/run`.
        """
        self.engine, self.policy, self.network = engine, policy, network
        self.disks = DiskRoute(policy.installation, _Inspector(self, ""))
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        super().__init__(str(path), _Handler, bind_and_activate=False)
        self.socket.bind(str(path))
        path.chmod(0o600)
        self.server_activate()

    def connect(self) -> socket.socket:
        """A connection to the engine."""
        found = socket.socket(socket.AF_UNIX)
        found.settimeout(SECONDS)
        try:
            found.connect(self.engine)
        except OSError:
            found.close()
            raise
        return found


class _Handler(BaseHTTPRequestHandler):
    server: EngineFilter
    protocol_version = "HTTP/1.1"
    timeout = SECONDS

    def handle(self) -> None:
        """Serve one request. If the engine is down, the connection ends without a response, as without a filter."""
        try:
            self.raw_requestline = self.rfile.readline(CHUNK)
            if self.raw_requestline and self.parse_request():
                self._serve()
        except OSError as error:
            log.info("connection_ended", error=type(error).__name__)

    def log_message(self, *_: Any) -> None:
        """Log nothing: only refused requests are of interest."""

    def _serve(self) -> None:
        if self.path == ROUTE and self.server.network is not None:
            self._serve_network(self.server.network)
            return
        try:
            request = parse(self.command, self.path, self._read_body(), self.headers.get("Content-Type", ""))
            if DiskRoute.serves(request):
                self._respond(200, self.server.disks.execute(request))
            else:
                self._forward(admit(request, RuleContext(self.server.policy, _Inspector(self.server, request.version))))
        except EngineFailing as error:
            self._respond(500, {"message": str(error)})
        except RequestRefused as error:
            log.warning("engine_request_refused", method=self.command, path=self.path, why=str(error))
            self._respond(403, {"message": f"the engine filter refuses this: {error}"})

    def _read_body(self) -> bytes:
        lengths = self.headers.get_all("Content-Length", ["0"])
        if self.headers.get("Transfer-Encoding") or len(lengths) > 1 or not lengths[0].isdecimal():
            raise RequestRefused("the body has no plain length")
        if int(lengths[0]) > MAX_BODY_BYTES:
            raise RequestRefused(f"the body has more than {MAX_BODY_BYTES} bytes")
        return self.rfile.read(int(lengths[0]))

    def _forward(self, request: Request) -> None:
        with self.server.connect() as engine:
            engine.sendall(self._head(request) + request.body)
            self._pass_response(engine)

    def _head(self, request: Request) -> bytes:
        fields = {"Host": "engine", "Connection": "close", "Content-Length": len(request.body)}
        if request.content_type:
            fields["Content-Type"] = request.content_type
        # The credentials for the registry of a pull.
        if registry := self.headers.get("X-Registry-Auth"):
            fields["X-Registry-Auth"] = registry
        lines = [f"{request.method} {request.target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        if any(not line.isprintable() for line in lines):
            raise RequestRefused("the head of the request has control characters")
        return "\r\n".join([*lines, "", ""]).encode()

    def _pass_response(self, engine: socket.socket) -> None:
        """Forward the response as it arrives, until the worker disconnects: streams of events have no other end."""
        engine.settimeout(None)
        self.connection.settimeout(None)
        ready = select.poll()
        for each in (engine, self.connection):
            ready.register(each, select.POLLIN)
        while self.connection.fileno() not in (found := dict(ready.poll())):
            if engine.fileno() in found:
                if not (data := engine.recv(CHUNK)):
                    return
                self.connection.sendall(data)

    def _serve_network(self, network: NetworkRoute) -> None:
        try:
            self._respond(200, network.serve(self.command, self._read_body()))
        except RequestRefused as error:
            log.warning("network_rules_refused", why=str(error))
            self._respond(403, {"message": f"the engine filter refuses this: {error}"})
        except FirewallError as error:
            self._respond(503, {"message": str(error)})

    def _respond(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response_only(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": len(body),
            "Connection": "close",
        }.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)


class _Inspector:
    """Reads the engine's objects, in the version of the worker's request."""

    def __init__(self, server: EngineFilter, version: str) -> None:
        self._server, self._version = server, version

    def __call__(self, path: str) -> dict[str, Any] | None:
        connection = HTTPConnection("engine")
        connection.sock = self._server.connect()
        try:
            connection.request("GET", self._version + path, headers={"Connection": "close"})
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status == 404:
            return None
        if response.status != 200:
            raise OSError(f"the engine responds with status {response.status}")
        found: dict[str, Any] = json.loads(body)
        return found

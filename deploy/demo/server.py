"""The HTTP server of a scripted model: routes, the key check, whole and streamed responses."""

import json
import socketserver
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from deploy.demo.completion import chunks, completion
from deploy.demo.script import Fail, Json

if TYPE_CHECKING:
    from deploy.demo.scripted_model import ScriptedModel

MAX_BODY_BYTES = 32 * 1024 * 1024


class Server(ThreadingHTTPServer):
    """The HTTP server. Each connection has a daemon thread."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], model: "ScriptedModel") -> None:
        self.model = model
        super().__init__(address, Handler)

    def server_bind(self) -> None:
        """Bind without resolving the host's name, which can take seconds without a resolver."""
        socketserver.TCPServer.server_bind(self)


class Handler(BaseHTTPRequestHandler):
    """The handler of one connection."""

    protocol_version = "HTTP/1.1"
    timeout = 120
    server: Server

    def do_GET(self) -> None:
        """Serve health and the list of models."""
        if self.path == "/health":
            return self._send(200, {"status": "ok"})
        if self.path != "/v1/models":
            return self._send_error(404, f"nothing at {self.path}")
        if not self.server.model.admits(self.headers["Authorization"]):
            return self._send_error(401, "wrong API key")
        models = [{"id": name, "object": "model"} for name in self.server.model.scripts]
        return self._send(200, {"object": "list", "data": models})

    def do_POST(self) -> None:
        """Serve chat completions."""
        request = self._read()
        if self.path != "/v1/chat/completions":
            return self._send_error(404, f"nothing at {self.path}")
        if not self.server.model.admits(self.headers["Authorization"]):
            return self._send_error(401, "wrong API key")
        if request is None:
            return self._send_error(400, "the body is not a JSON object")
        return self._complete(request)

    def log_message(self, *_: object) -> None:
        """Log nothing: the terminal is for the demo's or the tests' output."""

    def _complete(self, request: Json) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.model.record(request, headers)
        answer = self.server.model.answer(request)
        if isinstance(answer, Fail):
            self._send_error(answer.status, answer.message)
        elif request.get("stream"):
            self._stream([*chunks(request, answer)])
        else:
            self._send(200, completion(request, answer))

    def _read(self) -> Json | None:
        length = int(self.headers["Content-Length"] or 0)
        if length > MAX_BODY_BYTES:
            self.close_connection = True
            return None
        try:
            body = json.loads(self.rfile.read(length))
        except ValueError:
            return None
        return body if isinstance(body, dict) else None

    def _send_error(self, status: int, message: str) -> None:
        self._send(status, {"error": {"message": message, "type": "scripted", "code": status}})

    def _send(self, status: int, body: Json) -> None:
        self._write(status, "application/json", json.dumps(body).encode())

    def _stream(self, pieces: Sequence[Json]) -> None:
        lines = [f"data: {json.dumps(piece)}\n\n" for piece in pieces]
        self._write(200, "text/event-stream", "".join([*lines, "data: [DONE]\n\n"]).encode())

    def _write(self, status: int, media_type: str, content: bytes) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except ConnectionError:
            # The client disconnected while its request waited at a gate.
            self.close_connection = True

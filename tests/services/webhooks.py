"""A receiver of webhooks, which records requests and rejects as many as a test chooses."""

import json
import socketserver
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Delivery:
    """One POST: its path below the base URL, its headers by lower-case name, its body, and the response's status."""

    path: str
    headers: Mapping[str, str]
    body: Any
    status: int

    @property
    def conversation_id(self) -> str:
        """The id of its conversation, as 32 digits."""
        _, _, conversation_id = self.path.partition("/events/")
        return conversation_id or str(self.body["id"]).replace("-", "")

    @property
    def events(self) -> list[dict[str, Any]]:
        """The batch of events; empty for a description of a conversation."""
        return self.body if self.path.startswith("/events/") else []


class WebhookReceiver:
    """Responds with 200 unless `refuse` was called. It is thread-safe."""

    def __init__(self, host: str) -> None:
        self._lock = threading.Lock()
        self._deliveries: list[Delivery] = []
        self._refusals: Counter[str] = Counter()
        self._server = _Server((host, 0), self)

    @property
    def url(self) -> str:
        """The base URL for an agent server's configuration."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def refuse(self, conversation_id: str, times: int) -> None:
        """Reject the next deliveries of a conversation's events with a 503."""
        with self._lock:
            self._refusals[conversation_id] = times

    def deliveries(self, conversation_id: str, *, status: int = 200) -> list[Delivery]:
        """The deliveries of a conversation with this status, in the order of their arrival."""
        with self._lock:
            return [one for one in self._deliveries if (one.conversation_id, one.status) == (conversation_id, status)]

    def events(self, conversation_id: str) -> list[dict[str, Any]]:
        """The accepted events of a conversation, in the order of their arrival."""
        return [event for delivery in self.deliveries(conversation_id) for event in delivery.events]

    def described(self, conversation_id: str) -> list[dict[str, Any]]:
        """The accepted descriptions of a conversation, in the order of their arrival."""
        return [one.body for one in self.deliveries(conversation_id) if one.path == "/conversations"]

    def take(self, path: str, headers: Mapping[str, str], body: Any) -> int:
        """Record a delivery; return the status of the response."""
        with self._lock:
            delivery = Delivery(path, headers, body, 200)
            if delivery.events and self._refusals[delivery.conversation_id] > 0:
                self._refusals[delivery.conversation_id] -= 1
                delivery = Delivery(path, headers, body, 503)
            self._deliveries.append(delivery)
            return delivery.status

    def serve(self) -> None:
        """Serve until `close`."""
        self._server.serve_forever(poll_interval=0.05)

    def close(self) -> None:
        """Stop serving, and free the port."""
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def running_receiver(host: str) -> Iterator[WebhookReceiver]:
    """Run a receiver at a free port of an address, for the length of the block."""
    receiver = WebhookReceiver(host)
    thread = threading.Thread(target=receiver.serve, name="webhook-receiver", daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], receiver: WebhookReceiver) -> None:
        self.receiver = receiver
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # HTTPServer would look up the host's name, which takes seconds if no resolver responds.
        socketserver.TCPServer.server_bind(self)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    server: _Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.send_response(self.server.receiver.take(self.path, headers, body))
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Log nothing."""

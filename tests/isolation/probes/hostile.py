"""A hostile agent server that the service considers healthy. Its responses at `/evil` attack browsers."""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

with open(os.environ["OPENHANDS_AGENT_SERVER_CONFIG_PATH"]) as file:
    KEY = json.load(file)["session_api_keys"][0]


class Handler(BaseHTTPRequestHandler):
    """Responds to `/evil?Header=value` with these headers, and to `/echo` with the request."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Respond."""
        parts = urlsplit(self.path)
        status, body, kind, more = 200, b"0", "application/json", list(parse_qsl(parts.query))
        if parts.path.startswith("/evil"):
            status = int(dict(more).get("status", 200))
            body, kind = dict(more).get("body", "<script>document.title = 'run'</script>").encode(), "text/html"
        elif parts.path.startswith("/echo"):
            body = f"{self.requestline}\n{self.headers}".encode()
        elif parts.path.startswith("/api/") and self.headers.get("X-Session-API-Key") != KEY:
            status = 401
        self.send_response(status)
        for name, value in [("Content-Type", kind), ("Content-Length", str(len(body)))]:
            self.send_header(name, value)
        for name, value in more:
            if name not in ("status", "body"):
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - the base class's name

    def log_message(self, *_: object) -> None:
        """Log nothing."""


ThreadingHTTPServer(("0.0.0.0", 8000), Handler).serve_forever()

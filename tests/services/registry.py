"""An image registry for tests: one image, served from this process with the delays and errors that a test sets.

It has the routes of the distribution specification (OCI, version 1.1) that an engine uses for a pull.
"""

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAME = "agent-workspace/pulled"
TAG = "1"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
UNKNOWN = b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"there is no such thing"}]}'
DENIED = b'{"errors":[{"code":"DENIED","message":"the layers are kept back"}]}'


class Registry:
    """Serves the content of one image with any name. Engines trust 127.0.0.0/8 without TLS.

    The tag `missing` does not exist. The layers of images named `broken` are refused.
    """

    def __init__(self, image: str) -> None:
        self.delay_seconds = 0.0
        self.is_failing = False
        self._blobs: dict[str, bytes] = {}
        self._manifest = self._read(image)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def address(self) -> str:
        """The beginning of every image reference."""
        return f"127.0.0.1:{self._server.server_port}"

    @property
    def image(self) -> str:
        """The image reference to pull."""
        return f"{self.address}/{NAME}:{TAG}"

    def start(self) -> None:
        """Start listening, always on the same port."""
        self._thread.start()

    def stop(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def find(self, path: str) -> tuple[int, str, bytes]:
        """The response for a path: the status, the content type and the content."""
        time.sleep(self.delay_seconds)
        if path == "/v2/":
            return 200, "application/json", b"{}"
        name, kind, reference = path.removeprefix("/v2/").rsplit("/", 2)
        if kind == "manifests" and reference != "missing":
            return 200, MANIFEST, self._manifest
        if reference not in self._blobs:
            return 404, "application/json", UNKNOWN
        if "broken" in name and reference != self._config:
            return 403, "application/json", DENIED
        return 200, "application/octet-stream", self._blobs[reference]

    def _read(self, image: str) -> bytes:
        saved = subprocess.run(["docker", "save", image], check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(saved)) as tar:
            (context,) = json.loads(_member(tar, "manifest.json"))
            config = self._add(CONFIG, _member(tar, context["Config"]))
            layers = [self._add(LAYER, gzip.compress(_member(tar, name), 1, mtime=0)) for name in context["Layers"]]
        self._config = config["digest"]
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}
        return json.dumps(manifest).encode()

    def _add(self, kind: str, content: bytes) -> dict[str, Any]:
        digest = _digest(content)
        self._blobs[digest] = content
        return {"mediaType": kind, "size": len(content), "digest": digest}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if registry.is_failing:
                    self._answer(500, "text/plain", b"told to fail")
                else:
                    self._answer(*registry.find(self.path))

            do_HEAD = do_GET  # noqa: N815 - the names are those of the base class

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

            def _answer(self, status: int, kind: str, content: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Docker-Content-Digest", _digest(content))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(content)

        return Handler


@contextmanager
def running_registry(image: str) -> Iterator[Registry]:
    """Run a registry with an image of the machine's engine, for the length of the block."""
    registry = Registry(image)
    registry.start()
    try:
        yield registry
    finally:
        registry.stop()


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    if file is None:
        raise LookupError(name)
    return file.read()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"

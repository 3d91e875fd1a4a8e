"""A socket that responds like an engine, with scripted bytes for each path."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingMixIn, UnixStreamServer

from tests.services.directories import short_directory

HOLD_SECONDS = 30.0
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass(frozen=True)
class Answer:
    """Bytes sent for a request. Then the connection is closed, or stays open without data."""

    content: bytes = b""
    holds: bool = False


@dataclass
class ScriptedEngine:
    """Engine with responses by suffix of a request's path. Other paths are not found."""

    path: Path
    responses: dict[str, Answer] = field(default_factory=dict)
    requested: Counter[str] = field(default_factory=Counter)
    closed: threading.Event = field(default_factory=threading.Event)
    # Responses to changes wait for this event. It is set unless a test clears it.
    go_on: threading.Event = field(default_factory=threading.Event)

    @property
    def host(self) -> str:
        return f"unix://{self.path}"

    def find(self, path: str) -> Answer:
        for end, response in self.responses.items():
            if path.partition("?")[0].endswith(end):
                self.requested[end] += 1
                return response
        return error(404, "no such thing")


def whole(content: bytes, status: int = 200) -> Answer:
    """Return a complete response."""
    head = f"HTTP/1.1 {status} Some\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    return Answer(head.encode() + b"Connection: close\r\n\r\n" + content)


def error(status: int, words: str) -> Answer:
    """Return an error response."""
    return whole(b'{"message":"%s"}' % words.encode(), status)


def chunk(content: bytes) -> bytes:
    """Return one chunk of a stream."""
    return b"%x\r\n%s\r\n" % (len(content), content)


@contextmanager
def running_scripted_engine() -> Iterator[ScriptedEngine]:
    """Run a scripted engine for the length of the block."""
    with short_directory("scripted") as directory:
        engine = ScriptedEngine(directory / "docker.sock", {"/version": whole(b'{"ApiVersion":"1.41"}')})
        engine.go_on.set()
        with _Server(str(engine.path), _handler(engine)) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                yield engine
            finally:
                engine.closed.set()
                engine.go_on.set()
                server.shutdown()
                thread.join()


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True


def _handler(engine: ScriptedEngine) -> type[StreamRequestHandler]:
    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            method, path, _version = self.rfile.readline().decode().split()
            length = 0
            while line := self.rfile.readline().strip():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            self.rfile.read(length)
            response = engine.find(path)
            if method == "POST":
                engine.go_on.wait(HOLD_SECONDS)
            self.wfile.write(response.content)
            if response.holds:
                engine.closed.wait(HOLD_SECONDS)

    return Handler

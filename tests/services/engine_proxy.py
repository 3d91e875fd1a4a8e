"""A proxy socket of an engine whose event streams can be closed or stalled."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.services.deployment_settings import Engine
from tests.services.directories import short_directory

CHUNK = 65536
EVENTS = b"/events?"


class EngineProxy:
    """Forwards everything. A test can interrupt the event streams, and nothing else."""

    def __init__(self, path: Path, engine: Engine) -> None:
        self.host, self.gateway, self.address = f"unix://{path}", engine.gateway, engine.address
        self.network = engine.network
        # The number of streams that were closed or stalled.
        self.interrupted = 0
        self._engine = engine.host.removeprefix("unix://")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(128)
        self._streams: list[_Stream] = []
        self._mode = "pass"
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Close every event stream, and every new one immediately."""
        self._change("cut")

    def stall(self) -> None:
        """Keep every event stream open, old or new, and forward no more of it, which the client cannot detect."""
        self._change("stall")

    def repair(self) -> None:
        """Forward new streams; close stalled ones."""
        self._change("pass")

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()

    def add(self, stream: "_Stream") -> None:
        """Register a connection as an event stream."""
        with self._lock:
            self._streams.append(stream)
            self._interrupt(stream)

    def _change(self, mode: str) -> None:
        with self._lock:
            stalled, self._mode = self._mode == "stall", mode
            for stream in self._streams:
                stream.end() if stalled else self._interrupt(stream)

    def _interrupt(self, stream: "_Stream") -> None:
        if self._mode != "pass" and not stream.ended:
            self.interrupted += 1
            stream.end() if self._mode == "cut" else stream.stalled.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                engine = socket.socket(socket.AF_UNIX)
                engine.connect(self._engine)
                _Stream(self, client, engine).start()


class _Stream:
    """One connection, until either side ends it."""

    def __init__(self, proxy: EngineProxy, client: socket.socket, engine: socket.socket) -> None:
        self.stalled = threading.Event()
        self.ended = False
        self._proxy, self._client, self._engine = proxy, client, engine

    def start(self) -> None:
        """Forward bytes in both directions."""
        threading.Thread(target=self._forward, daemon=True).start()

    def end(self) -> None:
        """Close both sides."""
        self.ended = True
        for end in (self._client, self._engine):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _forward(self) -> None:
        responses = threading.Thread(target=self._forward_responses, daemon=True)
        responses.start()
        with self._client, self._engine:
            self._forward_requests()
            responses.join()

    def _forward_requests(self) -> None:
        with suppress(OSError):
            while data := self._client.recv(CHUNK):
                if EVENTS in data.split(b"\r\n", 1)[0]:
                    self._proxy.add(self)
                self._engine.sendall(data)
        self._end_writing(self._engine)

    def _forward_responses(self) -> None:
        with suppress(OSError):
            while data := self._engine.recv(CHUNK):
                if not self.stalled.is_set():
                    self._client.sendall(data)
        self._end_writing(self._client)

    def _end_writing(self, end: socket.socket) -> None:
        with suppress(OSError):
            end.shutdown(socket.SHUT_WR)


@contextmanager
def running_engine_proxy(engine: Engine) -> Iterator[EngineProxy]:
    """Run a proxy in front of an engine, for the length of the block."""
    with short_directory("proxy") as directory:
        proxy = EngineProxy(directory / "docker.sock", engine)
        try:
            yield proxy
        finally:
            proxy.repair()
            proxy.cut()
            proxy.close()

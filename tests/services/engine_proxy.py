"""A proxy socket of an engine: event streams through it can be closed, or stalled."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.services.deployment import Engine
from tests.services.directories import short_directory

CHUNK = 65536
EVENTS = b"/events?"


class EngineProxy:
    """Passes everything on, except what it is told not to: only streams of events are ever harmed."""

    def __init__(self, path: Path, engine: Engine) -> None:
        self.host, self.gateway, self.address = f"unix://{path}", engine.gateway, engine.address
        self.network = engine.network
        # How many streams were ended or silenced.
        self.harmed = 0
        self._engine = engine.host.removeprefix("unix://")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(128)
        self._streams: list[_Stream] = []
        self._mode = "pass"
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End every stream of events, and every new one at once."""
        self._change("cut")

    def stall(self) -> None:
        """Leave every stream open, old or new, and let no more of it through: the other side can't tell."""
        self._change("stall")

    def mend(self) -> None:
        """Let new streams through; what was stalled is ended."""
        self._change("pass")

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def meet(self, stream: "_Stream") -> None:
        """A connection has turned into a stream of events."""
        with self._lock:
            self._streams.append(stream)
            self._harm(stream)

    def _change(self, mode: str) -> None:
        with self._lock:
            stalled, self._mode = self._mode == "stall", mode
            for stream in self._streams:
                stream.end() if stalled else self._harm(stream)

    def _harm(self, stream: "_Stream") -> None:
        if self._mode != "pass" and not stream.ended:
            self.harmed += 1
            stream.end() if self._mode == "cut" else stream.silenced.set()

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
        self.silenced = threading.Event()
        self.ended = False
        self._proxy, self._client, self._engine = proxy, client, engine

    def start(self) -> None:
        """Pass on what both sides say."""
        threading.Thread(target=self._carry, daemon=True).start()

    def end(self) -> None:
        """Hang up on both sides."""
        self.ended = True
        for end in (self._client, self._engine):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _carry(self) -> None:
        answers = threading.Thread(target=self._pass_answers, daemon=True)
        answers.start()
        with self._client, self._engine:
            self._pass_requests()
            answers.join()

    def _pass_requests(self) -> None:
        with suppress(OSError):
            while data := self._client.recv(CHUNK):
                if EVENTS in data.split(b"\r\n", 1)[0]:
                    self._proxy.meet(self)
                self._engine.sendall(data)
        self._say_goodbye(self._engine)

    def _pass_answers(self) -> None:
        with suppress(OSError):
            while data := self._engine.recv(CHUNK):
                if not self.silenced.is_set():
                    self._client.sendall(data)
        self._say_goodbye(self._client)

    def _say_goodbye(self, end: socket.socket) -> None:
        with suppress(OSError):
            end.shutdown(socket.SHUT_WR)


@contextmanager
def running_engine_proxy(engine: Engine) -> Iterator[EngineProxy]:
    """A socket before that engine's, for the length of the block."""
    with short_directory("proxy") as directory:
        proxy = EngineProxy(directory / "docker.sock", engine)
        try:
            yield proxy
        finally:
            proxy.mend()
            proxy.cut()
            proxy.close()

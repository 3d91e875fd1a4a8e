"""A proxy socket of an engine that fails selected requests in a chosen mode."""

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import h11

from tests.services.deployment_settings import Engine
from tests.services.directories import short_directory

CHUNK = 65536
READS = (b"GET", b"HEAD")
BODY_OF_500 = b'{"message":"injected by the test"}'
# Longer than any client waits for a response.
SWALLOW_SECONDS = 120.0


class FailureMode(StrEnum):
    """How a request fails."""

    FAIL = "500, not executed"
    FAIL_AFTER = "500, although executed"
    DROP = "executed, connection closed without a response"
    CUT = "executed, half of the response"
    DELAY = "executed, late response"
    SWALLOW = "executed, no response on an open connection"


@dataclass(frozen=True)
class Failure:
    """The failures of an engine.

    Args:
        mode: how requests fail.
        share: the share of requests that fail, between 0 and 1.
        reads: whether reads fail.
        writes: whether writes fail.
        seconds: the delay of late responses.
        path: fail only requests whose path contains this.
        most: the maximum number of failures; None: no limit.
    """

    mode: FailureMode
    share: float = 1.0
    reads: bool = True
    writes: bool = True
    seconds: float = 5.0
    path: bytes = b""
    most: int | None = None


class FaultyEngine:
    """Forwards requests to an engine, and fails those that `failure` selects.

    Args:
        path: the path of the socket.
        engine: the engine behind it.
        seed: determines which requests fail.
    """

    def __init__(self, path: Path, engine: Engine, seed: int = 0) -> None:
        self.host, self.gateway, self.address = f"unix://{path}", engine.gateway, engine.address
        self.network = engine.network
        self._failure: Failure | None = None
        self._since = 0
        # The number of injected failures, by mode.
        self.injected: Counter[FailureMode] = Counter()
        self._rng = random.Random(seed)
        self._engine = engine.host.removeprefix("unix://")
        self._closed = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(128)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def failure(self) -> Failure | None:
        """The current failures; None: requests are only forwarded."""
        if self._failure is None or self._failure.most is None:
            return self._failure
        return self._failure if self.injected.total() - self._since < self._failure.most else None

    @failure.setter
    def failure(self, failure: Failure | None) -> None:
        self._failure, self._since = failure, self.injected.total()

    def close(self) -> None:
        """Accept no more connections, and close those without a response."""
        self._closed.set()
        self._listener.close()

    def choose(self, request: h11.Request) -> Failure | None:
        """Decide whether a request fails."""
        failure = self.failure
        if failure is None or not (failure.reads if request.method in READS else failure.writes):
            return None
        if failure.path not in request.target or self._rng.random() >= failure.share:
            return None
        self.injected[failure.mode] += 1
        return failure

    def withhold(self, client: socket.socket) -> None:
        """Send nothing until the client closes the connection."""
        client.settimeout(0.1)
        ends = time.monotonic() + SWALLOW_SECONDS
        while not self._closed.is_set() and time.monotonic() < ends:
            with suppress(TimeoutError):
                if not client.recv(CHUNK):
                    return

    def connect(self) -> socket.socket:
        """A connection to the engine itself."""
        engine = socket.socket(socket.AF_UNIX)
        try:
            engine.connect(self._engine)
        except OSError:
            engine.close()
            raise
        return engine

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with closing(client), suppress(OSError, h11.ProtocolError, _Closed):
            conversation = _Conversation(self, client)
            while conversation.serve_one():
                pass


class _Closed(Exception):
    """One side closed the connection."""


class _Side:
    """One end of a connection, as HTTP."""

    def __init__(self, role: type[h11.CLIENT] | type[h11.SERVER], end: socket.socket) -> None:
        self.http = h11.Connection(role)
        self._end = end

    def read(self) -> h11.Event:
        """The next event of the other side's message."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(self._end.recv(CHUNK))
        if isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
            raise _Closed
        return event  # type: ignore[return-value]

    def send(self, event: h11.Event) -> None:
        """Send an event to the other side."""
        self._end.sendall(self.http.send(event) or b"")


class _Conversation:
    """The requests of one client, in sequence."""

    def __init__(self, faulty: FaultyEngine, client: socket.socket) -> None:
        self._faulty, self._client = faulty, client
        self._inbound = _Side(h11.SERVER, client)

    def serve_one(self) -> bool:
        """Forward one request and its response, unless it fails; return whether another may follow."""
        request = self._inbound.read()
        assert isinstance(request, h11.Request)
        body = list(self._read_body(self._inbound))
        failure = self._faulty.choose(request)
        if failure is not None and failure.mode == FailureMode.FAIL:
            self._fail()
        else:
            with closing(self._faulty.connect()) as engine:
                self._pass_on(_Side(h11.CLIENT, engine), request, body, failure)
        if self._inbound.http.our_state is not h11.DONE:
            return False
        self._inbound.http.start_next_cycle()
        return True

    def _pass_on(self, outbound: _Side, request: h11.Request, body: list[h11.Data], failure: Failure | None) -> None:
        for event in (request, *body, h11.EndOfMessage()):
            outbound.send(event)
        response = outbound.read()
        while isinstance(response, h11.InformationalResponse):
            response = outbound.read()
        assert isinstance(response, h11.Response)
        if failure is None:
            self._answer(response, self._read_body(outbound))
        else:
            self._respond(failure, response, list(self._read_body(outbound)))

    def _respond(self, failure: Failure, response: h11.Response, body: list[h11.Data]) -> None:
        match failure.mode:
            case FailureMode.FAIL_AFTER:
                self._fail()
            case FailureMode.DELAY:
                time.sleep(failure.seconds)
                self._answer(response, iter(body))
            case FailureMode.CUT:
                self._cut(response, body)
            case FailureMode.SWALLOW:
                self._faulty.withhold(self._client)

    def _answer(self, response: h11.Response, body: Iterator[h11.Data]) -> None:
        self._inbound.send(response)
        for data in body:
            self._inbound.send(data)
        self._inbound.send(h11.EndOfMessage())

    def _cut(self, response: h11.Response, body: list[h11.Data]) -> None:
        """Send half of the response, including its head."""
        whole = self._inbound.http.send(response) or b""
        for data in body:
            whole += self._inbound.http.send(data) or b""
        self._client.sendall(whole[: len(whole) // 2])

    def _fail(self) -> None:
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(BODY_OF_500)))]
        self._answer(h11.Response(status_code=500, headers=headers), iter([h11.Data(data=BODY_OF_500)]))

    def _read_body(self, side: _Side) -> Iterator[h11.Data]:
        while isinstance(event := side.read(), h11.Data):
            yield event


@contextmanager
def running_faulty_engine(engine: Engine, seed: int = 0) -> Iterator[FaultyEngine]:
    """Run a faulty engine in front of an engine, for the length of the block."""
    with short_directory("faulty") as directory:
        faulty = FaultyEngine(directory / "docker.sock", engine, seed)
        try:
            yield faulty
        finally:
            faulty.failure = None
            faulty.close()

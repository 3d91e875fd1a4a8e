"""A proxy socket of an engine that corrupts selected responses, one request at a time."""

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

from tests.services.deployment import Engine
from tests.services.directories import short_directory

CHUNK = 65536
READS = (b"GET", b"HEAD")
FAILURE = b'{"message":"spoiled by the test"}'
# The max wait of any client for a response that does not come.
SWALLOW_SECONDS = 120.0


class Way(StrEnum):
    """How an answer is spoiled."""

    FAIL = "500 instead of the act"
    FAIL_AFTER = "500 after the act"
    DROP = "hung up after the act"
    CUT = "half an answer after the act"
    DELAY = "late"
    SWALLOW = "no answer after the act, on an open connection"


@dataclass(frozen=True)
class Trouble:
    """What is wrong with an engine.

    Args:
        way: what happens to an answer.
        share: of the answers, between 0 and 1.
        reads: whether it happens to questions.
        writes: whether it happens to changes.
        seconds: by how much a late one is late.
        path: what must be in a request's path.
        most: so many answers are spoiled, and then none; None: all of that share.
    """

    way: Way
    share: float = 1.0
    reads: bool = True
    writes: bool = True
    seconds: float = 5.0
    path: bytes = b""
    most: int | None = None


class FaultyEngine:
    """Passes everything on, and spoils what its trouble says.

    Args:
        path: of its socket.
        engine: the one behind it.
        seed: decides which answers are spoiled.
    """

    def __init__(self, path: Path, engine: Engine, seed: int = 0) -> None:
        self.host, self.gateway, self.address = f"unix://{path}", engine.gateway, engine.address
        self.network = engine.network
        self._trouble: Trouble | None = None
        self._since = 0
        # How many answers were spoiled, by way.
        self.spoiled: Counter[Way] = Counter()
        self._rng = random.Random(seed)
        self._engine = engine.host.removeprefix("unix://")
        self._closed = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(128)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def trouble(self) -> Trouble | None:
        """What is wrong with it now; None: nothing."""
        if self._trouble is None or self._trouble.most is None:
            return self._trouble
        return self._trouble if self.spoiled.total() - self._since < self._trouble.most else None

    @trouble.setter
    def trouble(self, trouble: Trouble | None) -> None:
        self._trouble, self._since = trouble, self.spoiled.total()

    def close(self) -> None:
        """Take no more connections, and end those whose answers are withheld."""
        self._closed.set()
        self._listener.close()

    def choose(self, request: h11.Request) -> Trouble | None:
        """What happens to the answer to this request."""
        trouble = self.trouble
        if trouble is None or not (trouble.reads if request.method in READS else trouble.writes):
            return None
        if trouble.path not in request.target or self._rng.random() >= trouble.share:
            return None
        self.spoiled[trouble.way] += 1
        return trouble

    def withhold(self, client: socket.socket) -> None:
        """Say nothing until the other side hangs up."""
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
        with closing(client), suppress(OSError, h11.ProtocolError, _HungUp):
            conversation = _Conversation(self, client)
            while conversation.serve_one():
                pass


class _HungUp(Exception):
    """One side has gone."""


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
            raise _HungUp
        return event  # type: ignore[return-value]

    def send(self, event: h11.Event) -> None:
        """Send it."""
        self._end.sendall(self.http.send(event) or b"")


class _Conversation:
    """One client's requests, one after the other."""

    def __init__(self, faulty: FaultyEngine, client: socket.socket) -> None:
        self._faulty, self._client = faulty, client
        self._inbound = _Side(h11.SERVER, client)

    def serve_one(self) -> bool:
        """Pass one request on, and its answer back as far as it is let through; whether there may be another."""
        request = self._inbound.read()
        assert isinstance(request, h11.Request)
        body = list(self._read_body(self._inbound))
        trouble = self._faulty.choose(request)
        if trouble is not None and trouble.way == Way.FAIL:
            self._fail()
        else:
            with closing(self._faulty.connect()) as engine:
                self._pass_on(_Side(h11.CLIENT, engine), request, body, trouble)
        if self._inbound.http.our_state is not h11.DONE:
            return False
        self._inbound.http.start_next_cycle()
        return True

    def _pass_on(self, outbound: _Side, request: h11.Request, body: list[h11.Data], trouble: Trouble | None) -> None:
        for event in (request, *body, h11.EndOfMessage()):
            outbound.send(event)
        answer = outbound.read()
        while isinstance(answer, h11.InformationalResponse):
            answer = outbound.read()
        assert isinstance(answer, h11.Response)
        if trouble is None:
            self._answer(answer, self._read_body(outbound))
        else:
            self._spoil(trouble, answer, list(self._read_body(outbound)))

    def _spoil(self, trouble: Trouble, answer: h11.Response, body: list[h11.Data]) -> None:
        match trouble.way:
            case Way.FAIL_AFTER:
                self._fail()
            case Way.DELAY:
                time.sleep(trouble.seconds)
                self._answer(answer, iter(body))
            case Way.CUT:
                self._cut(answer, body)
            case Way.SWALLOW:
                self._faulty.withhold(self._client)

    def _answer(self, answer: h11.Response, body: Iterator[h11.Data]) -> None:
        self._inbound.send(answer)
        for data in body:
            self._inbound.send(data)
        self._inbound.send(h11.EndOfMessage())

    def _cut(self, answer: h11.Response, body: list[h11.Data]) -> None:
        """Half of it, head and all, and then nothing."""
        whole = self._inbound.http.send(answer) or b""
        for data in body:
            whole += self._inbound.http.send(data) or b""
        self._client.sendall(whole[: len(whole) // 2])

    def _fail(self) -> None:
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(FAILURE)))]
        self._answer(h11.Response(status_code=500, headers=headers), iter([h11.Data(data=FAILURE)]))

    def _read_body(self, side: _Side) -> Iterator[h11.Data]:
        while isinstance(event := side.read(), h11.Data):
            yield event


@contextmanager
def running_faulty_engine(engine: Engine, seed: int = 0) -> Iterator[FaultyEngine]:
    """A socket before that engine's, for the length of the block."""
    with short_directory("faulty") as directory:
        faulty = FaultyEngine(directory / "docker.sock", engine, seed)
        try:
            yield faulty
        finally:
            faulty.trouble = None
            faulty.close()

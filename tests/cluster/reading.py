"""Reads of a list during an update, alternately over a kept connection and over a new one."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import httpx

from tests.cluster.load import SANDBOXES, Request
from tests.cluster.machines import Machine
from tests.services import http

PAUSE_SECONDS = 0.05


@dataclass
class Reader:
    """Reads a list with an API key."""

    url: str
    key: str
    requests: list[Request] = field(default_factory=list)
    phase: str = "before"
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def failures(self) -> list[str]:
        """The reasons of failed requests."""
        return [f"{request.phase}: {request.failure}" for request in self.requests if request.failure]

    def run(self) -> None:
        """Read until `ended` is set."""
        key = {"Authorization": f"Bearer {self.key}"}
        with http.open_client(self.url, headers=key, timeout=60) as client:
            while not self.ended.wait(PAUSE_SECONDS):
                for headers in ({}, {"Connection": "close"}):
                    self.requests.append(self._read(client, headers))

    def _read(self, client: httpx.Client, headers: dict[str, str]) -> Request:
        phase, began, failure = self.phase, time.monotonic(), ""
        try:
            response = client.get(f"{SANDBOXES}/search", headers=headers)
            failure = "" if response.is_success else response.text
        except httpx.TransportError as error:
            failure = repr(error)
        return Request(phase, "new connection" if headers else "kept", began, time.monotonic() - began, failure)


@contextmanager
def reading(machine: Machine, url: str, key: str) -> Iterator[Reader]:
    """Read from a machine until the end of the block."""
    reader = Reader(url, key)
    thread = threading.Thread(target=partial(machine.namespace.call, reader.run))
    thread.start()
    try:
        yield reader
    finally:
        reader.ended.set()
        thread.join()

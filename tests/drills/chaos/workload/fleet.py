"""What the clients of a chaos run know and share: people, living sandboxes, conversations."""

import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import httpx

from shared.states import Desired
from tests.drills.chaos.site import Site
from tests.drills.history import SANDBOXES, History, RecordingClient
from tests.factories import Person
from tests.services import http

ANSWER_SECONDS = 4.0
# A request to a paused sandbox is held until that runs.
TRAFFIC_SECONDS = 15.0
# How often a request that makes something is sent under one idempotency key.
TRIES = 4


@dataclass(frozen=True)
class Talk:
    """A conversation whose start was acknowledged."""

    id: str
    task_id: str
    sandbox_id: str
    person: Person


@dataclass
class Fleet:
    """Shared by all clients; each attribute is changed by single operations only, which threads may interleave.

    Args:
        talking: the sandboxes whose agent servers take conversations.
        alive: the owner of each sandbox that was not deleted, as far as the clients know.
        requested_at: when a client last asked something of a sandbox, seconds of the monotonic clock.
        deadlines: what each sandbox with deadlines of its own may become without a request.
        expires: when each sandbox with a maximum age must begin to go, seconds of the monotonic clock.
        counts: answers of acts that are not in the history, by act and outcome.
    """

    site: Site
    people: list[Person]
    history: History = field(default_factory=History)
    talking: set[str] = field(default_factory=set)
    alive: dict[str, Person] = field(default_factory=dict)
    talks: dict[str, Talk] = field(default_factory=dict)
    requested_at: dict[str, float] = field(default_factory=dict)
    deadlines: dict[str, set[Desired]] = field(default_factory=dict)
    expires: dict[str, float] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def client(self, person: Person) -> RecordingClient:
        """A client of that person whose requests are in the shared history."""
        return RecordingClient(self.site.service.url, person, self.history, tries=TRIES, timeout=ANSWER_SECONDS)

    def touch(self, sandbox_id: str) -> None:
        """Note that something is asked of a sandbox now."""
        self.requested_at[sandbox_id] = time.monotonic()

    def count(self, act: str, outcome: str) -> None:
        """Count the answer of an act."""
        with self._lock:
            self.counts[f"{act} {outcome}"] += 1

    def forget(self, sandbox_id: str) -> None:
        """Drop a deleted sandbox and its conversations."""
        self.alive.pop(sandbox_id, None)
        for talk in list(self.talks.values()):
            if talk.sandbox_id == sandbox_id:
                self.talks.pop(talk.id, None)

    def listed(self) -> dict[str, tuple[Person, dict[str, Any]]]:
        """Every sandbox that the service lists, by id, with its owner; for moments without faults.

        A sandbox that was started or deleted without an answer may be among them or not.
        """
        known: dict[str, tuple[Person, dict[str, Any]]] = {}
        for person in self.people:
            page = self.read(person, f"{SANDBOXES}/search", limit=100)
            known |= {item["id"]: (person, item) for item in page["items"]}
        return known

    def read(self, person: Person, path: str, **params: Any) -> Any:
        """What a GET answers; for moments without faults.

        Raises:
            AssertionError: the answer is not a success.
        """
        url = self.site.service.url + path
        answer = http.get(url, headers=person.headers, params=params, timeout=ANSWER_SECONDS)
        assert answer.is_success, f"GET {path}: {answer.status_code} {answer.text}"
        return answer.json()

    def ask_traffic(self, path: str, person: Person) -> int | None:
        """The status of a GET that is passed on to a sandbox; None if no answer came."""
        try:
            answer = http.get(self.site.service.url + path, headers=person.headers, timeout=TRAFFIC_SECONDS)
        except httpx.TransportError:
            return None
        return answer.status_code

    def send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] = MappingProxyType({}),
        **content: Any,
    ) -> httpx.Response | None:
        """Send a request; None if no answer came.

        Raises:
            AssertionError: a 5xx other than a 503, or a 503 that does not say when to try again.
        """
        url = self.site.service.url + path
        try:
            answer = http.request(method, url, headers=dict(headers), timeout=ANSWER_SECONDS, **content)
        except httpx.TransportError:
            return None
        assert answer.status_code < 500 or answer.status_code == 503, f"{method} {path}: {answer.status_code}"
        assert answer.status_code != 503 or "Retry-After" in answer.headers, f"{method} {path}: 503, no Retry-After"
        return answer

"""What users do meanwhile: several clients of several people, on sandboxes that they share."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx

from shared.ids import new_id
from shared.store import user_settings
from tests.drills.chaos.site import BROKEN_IMAGE, SLOW_IMAGE, TALKING_IMAGE, Site
from tests.drills.history import History, RecordingClient
from tests.drills.wishes import Outcome
from tests.factories import Person, make_person
from tests.services import http
from tests.services.engine import TINY_IMAGE

PEOPLE = 3
CLIENTS = 16
MOST_SANDBOXES = 18
THINK_SECONDS = 0.3
ANSWER_SECONDS = 4.0
TRIES = 4
EVENTS = 5


class Workload:
    """Clients that ask for things as fast as they may, until told to stop; all they know is in one history."""

    def __init__(self, site: Site, seed: int) -> None:
        self.history = History()
        # The events that were acknowledged, as (conversation, event).
        self.reported: list[tuple[str, str]] = []
        # When each sandbox was last wished something, by the monotonic clock.
        self.wished_at: dict[str, float] = {}
        self._site = site
        self.people = [_make_owner(site, f"user-{number}") for number in range(PEOPLE)]
        self._alive: dict[str, Person] = {}
        self._rngs = [random.Random(f"{seed} client {number}") for number in range(CLIENTS)]
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []

    @property
    def counts(self) -> Counter[str]:
        """How many requests of each kind were answered how."""
        counts = Counter(f"{entry.verb} {entry.outcome}" for entry in self.history.entries)
        return counts + Counter({f"report {Outcome.OK}": len(self.reported) // EVENTS})

    @property
    def acknowledged(self) -> int:
        """How many writes were answered with a success."""
        return sum(count for name, count in self.counts.items() if name.endswith(f" {Outcome.OK}"))

    def start(self) -> None:
        """Begin a round."""
        self._stopped.clear()
        self._threads = [threading.Thread(target=self._work, args=(rng,), daemon=True) for rng in self._rngs]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End it, with every request answered or given up.

        Raises:
            BaseException: a client met an answer that none must get.
        """
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        self.history.settle()
        if self._failures:
            raise self._failures[0]

    def repair(self) -> None:
        """Wish once more for each sandbox, with nothing in the way: half to run, half to be paused."""
        self._alive = self._known()
        for number, (sandbox_id, person) in enumerate(sorted(self._alive.items())):
            client = self._client(person)
            self._wish(client.resume if number % 2 else client.pause, sandbox_id)
        self.history.settle()

    def delete_all(self) -> None:
        """Delete what is left, from whatever state it is in."""
        for sandbox_id, person in sorted(self._known().items()):
            self._wish(self._client(person).delete, sandbox_id)
            self._alive.pop(sandbox_id, None)
        self.history.settle()

    def _work(self, rng: random.Random) -> None:
        try:
            while not self._stopped.wait(rng.uniform(0, THINK_SECONDS)):
                self._ask(rng)
        except BaseException as error:  # noqa: BLE001 - told by `stop`
            self._failures.append(error)

    def _ask(self, rng: random.Random) -> None:
        alive = sorted(self._alive)
        few = len(alive) < MOST_SANDBOXES
        if not alive or (few and rng.random() < 0.12):
            self._start(rng)
            return
        sandbox_id = rng.choice(alive)
        person = self._alive.get(sandbox_id)
        if person is None:
            return
        client = self._client(person)
        acts: list[tuple[Callable[[], None], float]] = [
            (lambda: self._wish(client.pause, sandbox_id), 24),
            (lambda: self._wish(client.resume, sandbox_id), 28),
            (lambda: self._wish(client.stop, sandbox_id), 6),
            (lambda: self._delete(client, sandbox_id), 6 if few else 14),
            (lambda: _forget(client.converse(sandbox_id)), 5),
            (lambda: self._report(person, sandbox_id), 16),
            (lambda: self._read(person), 18),
        ]
        rng.choices([act for act, _ in acts], [weight for _, weight in acts])[0]()

    def _start(self, rng: random.Random) -> None:
        person = rng.choice(self.people)
        images = [TINY_IMAGE, TALKING_IMAGE, self._site.registry.image, SLOW_IMAGE, BROKEN_IMAGE]
        image = rng.choices(images, [40, 30, 15, 10, 5])[0]
        began = time.monotonic()
        sandbox_id = self._client(person).start(image)
        if sandbox_id is not None:
            self.wished_at[sandbox_id] = began
            self._alive[sandbox_id] = person

    def _wish(self, act: Callable[[str], None], sandbox_id: str) -> None:
        self.wished_at[sandbox_id] = time.monotonic()
        act(sandbox_id)

    def _delete(self, client: RecordingClient, sandbox_id: str) -> None:
        self._wish(client.delete, sandbox_id)
        self._alive.pop(sandbox_id, None)

    def _read(self, person: Person) -> None:
        """A page never holds what is somebody else's, whatever is down."""
        answer = self._send("GET", "/api/v1/sandboxes/search", person.headers)
        if answer is not None and answer.is_success:
            assert all(item["created_by_user_id"] == person.id for item in answer.json()["items"])

    def _report(self, person: Person, sandbox_id: str) -> None:
        """Speak as the sandbox's agent server does: send events again until they are taken."""
        found = self._send("GET", f"/api/v1/sandboxes/{sandbox_id}", person.headers)
        key = found.json()["session_api_key"] if found is not None and found.is_success else None
        if key is None:
            return
        conversation_id = new_id()
        events = [_event() for _ in range(EVENTS)]
        for _ in range(TRIES):
            path = f"/api/v1/webhooks/events/{conversation_id}"
            answer = self._send("POST", path, {"X-Session-API-Key": key}, json=events)
            if answer is not None and answer.is_success:
                self.reported += [(conversation_id, event["id"]) for event in events]
                # Once more, as if the answer had been lost.
                self._send("POST", path, {"X-Session-API-Key": key}, json=events)
                return

    def _send(self, method: str, path: str, headers: dict[str, str], **content: Any) -> httpx.Response | None:
        url = self._site.service.url + path
        try:
            answer = http.request(method, url, headers=headers, timeout=ANSWER_SECONDS, **content)
        except httpx.TransportError:
            return None
        assert answer.status_code < 500 or answer.status_code == 503, f"{method} {path}: {answer.status_code}"
        return answer

    def _client(self, person: Person) -> RecordingClient:
        return RecordingClient(self._site.service.url, person, self.history, tries=TRIES, timeout=ANSWER_SECONDS)

    def _known(self) -> dict[str, Person]:
        """Whatever the service lists: what was asked for or deleted without an answer may be there or not."""
        known: dict[str, Person] = {}
        for person in self.people:
            page = http.get(
                f"{self._site.service.url}/api/v1/sandboxes/search", headers=person.headers, timeout=ANSWER_SECONDS
            )
            known |= {item["id"]: person for item in page.json()["items"]}
        return known


def _make_owner(site: Site, name: str) -> Person:
    person = make_person(site.service.database, name)
    with site.service.database.transaction() as session:
        change = {"llm_model": "openai/none", "llm_api_key": "unused"}
        user_settings.change(session, site.service.vault, person.id, change)
    return person


def _event() -> dict[str, Any]:
    return {"id": new_id(), "kind": "MessageEvent", "timestamp": "2026-01-01T00:00:00", "source": "agent"}


def _forget(_answer: str | None) -> None:
    """What was answered is in the history."""

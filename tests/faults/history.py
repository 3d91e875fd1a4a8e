"""A client that writes down what it asks for and what it is told."""

import itertools

import httpx

from tests.factories import Person
from tests.faults.checker import Entry, Outcome, Verb

SANDBOXES = "/api/v1/sandboxes"
MESSAGE = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}


class RecordingClient:
    """One person's requests, one after the other, each on a connection of its own."""

    def __init__(self, url: str, person: Person) -> None:
        self.entries: list[Entry] = []
        self._url = url
        self.person = person
        self._calls = itertools.count(1)

    def start(self, image: str) -> str | None:
        """Ask for a sandbox; its id, if there was an answer."""
        return self._ask(Verb.START, None, "POST", SANDBOXES, params={"sandbox_spec_id": image})

    def pause(self, sandbox_id: str) -> None:
        self._ask(Verb.PAUSE, sandbox_id, "POST", f"{SANDBOXES}/{sandbox_id}/pause")

    def resume(self, sandbox_id: str) -> None:
        self._ask(Verb.RESUME, sandbox_id, "POST", f"{SANDBOXES}/{sandbox_id}/resume")

    def delete(self, sandbox_id: str) -> None:
        self._ask(Verb.DELETE, sandbox_id, "DELETE", f"{SANDBOXES}/{sandbox_id}")

    def converse(self) -> str | None:
        """Ask for a conversation; its start task's id, if there was an answer."""
        return self._ask(Verb.CONVERSE, None, "POST", "/api/v1/app-conversations", json={"initial_message": MESSAGE})

    def _ask(
        self,
        verb: Verb,
        subject: str | None,
        method: str,
        path: str,
        *,
        params: dict[str, str] | None = None,
        json: dict[str, object] | None = None,
    ) -> str | None:
        call = next(self._calls)
        self.entries.append(Entry(call, Outcome.INVOKED, verb, subject))
        try:
            answer = httpx.request(
                method, self._url + path, params=params, json=json, headers=self.person.headers, timeout=30
            )
        except httpx.TransportError:
            return None
        if answer.is_success:
            subject = subject or str(answer.json()["id"])
        # A 5xx says nothing of what has happened.
        if answer.status_code < 500:
            self.entries.append(Entry(call, Outcome.OK if answer.is_success else Outcome.FAILED, verb, subject))
        return subject

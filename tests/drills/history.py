"""Clients that record their requests and responses in a shared history."""

import itertools
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import httpx

from shared.ids import new_id
from tests.drills.requests import Entry, Outcome, Verb
from tests.drills.responses import assert_no_failure
from tests.factories import ApiUser
from tests.services import http

SANDBOXES = "/api/v1/sandboxes"
MESSAGE = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
IDEMPOTENCY_KEY = "Idempotency-Key"


class History:
    """Requests and responses, in order. Threads may write concurrently."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._calls = itertools.count(1)
        self._lock = threading.Lock()

    @property
    def entries(self) -> list[Entry]:
        """The entries so far."""
        with self._lock:
            return list(self._entries)

    def invoke(self, verb: Verb, subject: str | None) -> int:
        """Record a request; return its number."""
        call = next(self._calls)
        self._append(Entry(call, Outcome.INVOKED, verb, subject))
        return call

    def complete(self, call: int, outcome: Outcome, verb: Verb, subject: str | None) -> None:
        """Record a response."""
        self._append(Entry(call, outcome, verb, subject))

    def settle(self) -> None:
        """Record that no request is pending: those without a response have taken effect by now, or never will."""
        entries = self.entries
        answered = {entry.call for entry in entries if entry.outcome != Outcome.INVOKED}
        for entry in entries:
            if entry.outcome == Outcome.INVOKED and entry.call not in answered:
                self._append(Entry(entry.call, Outcome.LOST, entry.verb, entry.subject))

    def _append(self, entry: Entry) -> None:
        with self._lock:
            self._entries.append(entry)


class RecordingClient:
    """Sends one user's requests, each on its own connection, and records them.

    All methods raise an AssertionError after a 5xx, except after a 503 with `Retry-After`.

    Args:
        tries: the maximum number of times to send a create request, with one idempotency key, until a response.
        timeout: the timeout of a request, in seconds.
    """

    def __init__(
        self, url: str, user: ApiUser, history: History | None = None, *, tries: int = 1, timeout: float = 30
    ) -> None:
        self.user = user
        self.history = history or History()
        self._url = url
        self._tries = tries
        self._timeout = timeout

    @property
    def entries(self) -> list[Entry]:
        """The requests and responses of all clients that share the history."""
        return self.history.entries

    def start(self, image: str, deadlines: Mapping[str, int] | None = None, *, replay: bool = False) -> str | None:
        """Start a sandbox.

        Args:
            deadlines: the sandbox's own, in seconds; None: those of its spec.
            replay: repeat an answered request with its idempotency key, which must get the same response.

        Returns:
            The sandbox's id, or None without a response.
        """
        content = {"params": {"sandbox_spec_id": image}} | ({"json": dict(deadlines)} if deadlines else {})
        return self._record(Verb.START, None, lambda: self._make(SANDBOXES, replay=replay, **content))

    def pause(self, sandbox_id: str) -> None:
        self._change(Verb.PAUSE, sandbox_id, "POST", "/pause")

    def stop(self, sandbox_id: str) -> None:
        self._change(Verb.STOP, sandbox_id, "POST", "/pause?kind=stopped")

    def resume(self, sandbox_id: str) -> None:
        self._change(Verb.RESUME, sandbox_id, "POST", "/resume")

    def delete(self, sandbox_id: str) -> None:
        self._change(Verb.DELETE, sandbox_id, "DELETE", "")

    def converse(self, sandbox_id: str | None = None, conversation_id: str | None = None) -> str | None:
        """Start a conversation, optionally with a chosen id; return the start task's id, or None without a response."""
        body = {"initial_message": MESSAGE, "sandbox_id": sandbox_id, "conversation_id": conversation_id}
        # The start resumes a paused sandbox and does not change a running one.
        resume = self.history.invoke(Verb.RESUME, sandbox_id)
        task_id = self._record(Verb.CONVERSE, None, lambda: self._make("/api/v1/app-conversations", json=body))
        self.history.complete(resume, Outcome.LOST, Verb.RESUME, sandbox_id)
        return task_id

    def _change(self, verb: Verb, sandbox_id: str, method: str, path: str) -> None:
        self._record(verb, sandbox_id, lambda: self._send(method, f"{SANDBOXES}/{sandbox_id}{path}"))

    def _record(self, verb: Verb, subject: str | None, send: Callable[[], httpx.Response | None]) -> str | None:
        call = self.history.invoke(verb, subject)
        response = send()
        if response is None:
            return None
        if response.is_success:
            subject = subject or str(response.json()["id"])
        # After a 5xx, the request may have taken effect or not.
        if response.status_code < 500:
            self.history.complete(call, Outcome.OK if response.is_success else Outcome.FAILED, verb, subject)
        return subject

    def _make(self, path: str, *, replay: bool = False, **content: Any) -> httpx.Response | None:
        """Send a create request; return the response, or None if the outcome is unknown.

        If an earlier try got no response, a refusal of a later one is not the outcome: the earlier try may still be
        pending, and succeed.
        """
        key = new_id()
        for attempt in range(self._tries):
            response = self._send("POST", path, headers={IDEMPOTENCY_KEY: key}, **content)
            if response is None or response.status_code >= 500:
                continue
            if replay and response.is_success:
                self._replay(path, key, response, content)
            return response if response.is_success or attempt == 0 else None
        return None

    def _replay(self, path: str, key: str, first: httpx.Response, content: dict[str, Any]) -> None:
        again = self._send("POST", path, headers={IDEMPOTENCY_KEY: key}, **content)
        if again is not None and again.status_code < 500:
            assert again.json().get("id") == first.json()["id"], f"{path}: replayed as {again.text}, was {first.text}"

    def _send(
        self, method: str, path: str, headers: Mapping[str, str] = MappingProxyType({}), **content: Any
    ) -> httpx.Response | None:
        sent = {**self.user.headers, **headers}
        try:
            response = http.request(method, self._url + path, headers=sent, timeout=self._timeout, **content)
        except httpx.TransportError:
            return None
        assert_no_failure(response)
        return response

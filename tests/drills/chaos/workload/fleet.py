"""The state that the clients of a chaos run share: users, existing sandboxes and conversations."""

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
from tests.drills.responses import assert_no_failure
from tests.factories import ApiUser
from tests.services import http

ANSWER_SECONDS = 4.0
# The service holds a request to a paused sandbox until the sandbox runs.
TRAFFIC_SECONDS = 15.0
# The maximum number of times that a create request is sent with one idempotency key.
TRIES = 4


@dataclass(frozen=True)
class AcknowledgedConversation:
    """A conversation whose start was acknowledged."""

    id: str
    task_id: str
    sandbox_id: str
    user: ApiUser


@dataclass
class Fleet:
    """The state that all clients share. Threads may interleave, so each attribute is changed by atomic operations only.

    Args:
        accepting: the sandboxes whose agent servers accept conversations.
        alive: the owner of each sandbox that no client has deleted.
        requested_at: the time of the last request about each sandbox, in seconds of the monotonic clock.
        deadlines: the desired states that each sandbox's own deadlines may set without a request.
        expires: when each sandbox with a maximum age must be deleted, in seconds of the monotonic clock.
        counts: the responses to requests that are not in the history, by kind and outcome.
    """

    site: Site
    users: list[ApiUser]
    history: History = field(default_factory=History)
    accepting: set[str] = field(default_factory=set)
    alive: dict[str, ApiUser] = field(default_factory=dict)
    conversations: dict[str, AcknowledgedConversation] = field(default_factory=dict)
    requested_at: dict[str, float] = field(default_factory=dict)
    deadlines: dict[str, set[Desired]] = field(default_factory=dict)
    expires: dict[str, float] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def client(self, user: ApiUser) -> RecordingClient:
        """A client for this user that records its requests in the shared history."""
        return RecordingClient(self.site.service.url, user, self.history, tries=TRIES, timeout=ANSWER_SECONDS)

    def touch(self, sandbox_id: str) -> None:
        """Record the time of a request about a sandbox."""
        self.requested_at[sandbox_id] = time.monotonic()

    def count(self, act: str, outcome: str) -> None:
        """Count a response."""
        with self._lock:
            self.counts[f"{act} {outcome}"] += 1

    def forget(self, sandbox_id: str) -> None:
        """Remove a deleted sandbox and its conversations."""
        self.alive.pop(sandbox_id, None)
        for conversation in list(self.conversations.values()):
            if conversation.sandbox_id == sandbox_id:
                self.conversations.pop(conversation.id, None)

    def listed(self) -> dict[str, tuple[ApiUser, dict[str, Any]]]:
        """Every sandbox that the service lists, by id, with its owner. Call it only while there are no faults.

        A sandbox whose start or delete got no response may be listed or not.
        """
        known: dict[str, tuple[ApiUser, dict[str, Any]]] = {}
        for user in self.users:
            page = self.read(user, f"{SANDBOXES}/search", limit=100)
            known |= {item["id"]: (user, item) for item in page["items"]}
        return known

    def read(self, user: ApiUser, path: str, **params: Any) -> Any:
        """The body of the response to a GET. Call it only while there are no faults.

        Raises:
            AssertionError: the response is not a success.
        """
        url = self.site.service.url + path
        response = http.get(url, headers=user.headers, params=params, timeout=ANSWER_SECONDS)
        assert response.is_success, f"GET {path}: {response.status_code} {response.text}"
        return response.json()

    def send_traffic(self, path: str, user: ApiUser) -> int | None:
        """The status code of a GET that the service forwards to a sandbox; None without a response."""
        try:
            response = http.get(self.site.service.url + path, headers=user.headers, timeout=TRAFFIC_SECONDS)
        except httpx.TransportError:
            return None
        return response.status_code

    def send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] = MappingProxyType({}),
        **content: Any,
    ) -> httpx.Response | None:
        """Send a request; return None without a response.

        Raises:
            AssertionError: a 5xx other than a 503, or a 503 without `Retry-After`.
        """
        url = self.site.service.url + path
        try:
            response = http.request(method, url, headers=dict(headers), timeout=ANSWER_SECONDS, **content)
        except httpx.TransportError:
            return None
        assert_no_failure(response)
        return response

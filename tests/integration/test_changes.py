"""The stream of changes over HTTP, on real components: it has every change, also across a restart of the API."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.engine import TINY_IMAGE
from tests.waiting import eventually

CHANGES = "/api/v1/changes"
SANDBOXES = "/api/v1/sandboxes"
WAIT = {"wait": 60}


class Subscriber:
    """Reads a user's changes in its own thread, and continues from the last id when the stream ends."""

    def __init__(self, client: Client) -> None:
        self.events: list[tuple[str, str, dict[str, Any]]] = []
        self._client = client
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def changes(self, row_id: str) -> list[str | None]:
        """The statuses of a row, in order."""
        return [data["status"] for name, _, data in self.events if name == "change" and data["id"] == row_id]

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            last = {"Last-Event-ID": self.events[-1][1]} if self.events else {}
            try:
                with self._client.stream("GET", CHANGES, headers=last, timeout=httpx.Timeout(30, read=0.5)) as response:
                    self.events += (event for event in read_events(response))
            except httpx.TransportError:
                self._stopped.wait(0.1)


def read_events(response: httpx.Response) -> Iterator[tuple[str, str, dict[str, Any]]]:
    event: dict[str, str] = {}
    for line in response.iter_lines():
        name, _, value = line.partition(": ")
        if line:
            event[name] = value
        elif "data" in event:
            yield event["event"], event["id"], json.loads(event["data"])
            event = {}


@pytest.fixture
def service(installed: Deployment) -> Deployment:
    """The running service, with a small image that supports conversations."""
    installed.prepare()
    installed.add_spec(TINY_IMAGE, {"TINY_CONVERSES": "1"})
    installed.start()
    return installed


@pytest.fixture
def subscriber(alice: Client) -> Iterator[Subscriber]:
    subscriber = Subscriber(alice)
    try:
        eventually(lambda: subscriber.events)
        yield subscriber
    finally:
        subscriber.stop()


def test_stream_has_all_changes_of_its_user(service: Deployment, alice: Client, subscriber: Subscriber) -> None:
    alice.post("/api/settings", json={"llm_model": "openai/none", "llm_api_key": "k"})
    with service.user("bob") as bob:
        theirs = bob.start_sandbox()
    task = alice.post("/api/v1/app-conversations", params=WAIT, json={}).json()
    sandbox_id, conversation_id = task["sandbox_id"], task["app_conversation_id"]
    alice.await_start(task["id"])
    alice.post(f"{SANDBOXES}/{sandbox_id}/pause", params=WAIT)
    alice.await_sandbox(sandbox_id, "PAUSED")
    service.interrupt_process("api")
    eventually(lambda: service.exit_code("api") is not None)
    service.start_api()
    alice.delete(f"{SANDBOXES}/{sandbox_id}", params=WAIT)
    eventually(lambda: "DELETED" in subscriber.changes(sandbox_id))

    assert distinct(subscriber.changes(sandbox_id)) == ["STARTING", "RUNNING", "PAUSED", "DELETING", "DELETED"]
    assert subscriber.changes(task["id"])[0] == "WORKING"
    assert subscriber.changes(task["id"])[-1] == "READY"
    assert subscriber.changes(conversation_id)
    assert subscriber.changes(theirs) == []
    numbers = [int(number) for _, number, _ in subscriber.events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert [name for name, _, _ in subscriber.events].count("reset") == 1


def test_stream_ends_in_order_when_its_process_does(installed: Deployment) -> None:
    installed.prepare(TINY_IMAGE)
    installed.start_api()
    with installed.user("alice") as alice, alice.stream("GET", CHANGES) as response:
        lines = response.iter_lines()
        assert next(lines) == "event: reset"
        installed.interrupt_process("api")
        assert list(lines)[-1] == ""
    assert eventually(lambda: installed.exit_code("api") is not None)


def distinct(states: list[str | None]) -> list[str | None]:
    """The states without adjacent duplicates."""
    return [state for before, state in zip([None, *states], states, strict=False) if state != before]

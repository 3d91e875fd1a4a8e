"""Webhooks: the storage of events in batches like an agent server's, compared with a bare INSERT of the same rows."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import httpx
from sqlalchemy import insert

from shared.conversations import webhook_reports
from shared.crypto import Vault
from shared.db.database import Database
from shared.models import Conversation, Event
from shared.states import Status
from tests.bench.figures import Figure, Runs
from tests.bench.site import Site
from tests.factories import make_conversation, make_sandbox
from tests.services.engine import TINY_IMAGE
from worker.sandboxes.container_spec import WEBHOOK

BATCH = int(WEBHOOK["event_buffer_size"])
# The number of agents that work at once.
SENDERS = 8
BATCHES = 25
TEXT = "a line of output such as commands print\n" * 20


def webhooks(site: Site, runs: int) -> Figure:
    """Measure the events per second."""
    database = site.service.database
    senders = [make_sender(site, number) for number in range(SENDERS)]
    measured: Runs = []
    bare: Runs = []
    for _ in range(runs):
        measured.append([_send_all(site.service.url, senders)])
        bare.append([_insert_all(database, [conversation for conversation, _ in senders])])
    return Figure(
        "webhook events into the store",
        measured,
        "bare INSERT of the same",
        bare,
        "≥ 2000 events/s",
        lambda one: one.over_all(0.5) >= 2000,
        unit="1/s",
    )


def make_sender(site: Site, number: int) -> tuple[Conversation, str]:
    """A conversation, and the key with which its agent server reports."""
    key = f"bench-session-key-{number}-{uuid4().hex}"
    vault: Vault = site.service.vault
    columns = {"session_key": vault.encrypt(key), "session_key_digest": vault.digest(key)}
    columns |= {"spec_id": TINY_IMAGE, "node_id": site.service.environment["AW_NODE"]}
    # The sandbox has no container, so its status is ERROR. The API accepts reports in any state.
    sandbox = make_sandbox(site.service.database, site.client.user, status=Status.ERROR, **columns)
    return make_conversation(site.service.database, site.client.user, sandbox), key


def _send_all(url: str, senders: list[tuple[Conversation, str]]) -> float:
    with ThreadPoolExecutor(SENDERS) as pool:
        bodies = {key: list(_batches()) for _, key in senders}
        began = time.perf_counter()
        list(pool.map(lambda one: _send(url, one[0].id, one[1], bodies[one[1]]), senders))
        return SENDERS * BATCHES * BATCH / (time.perf_counter() - began)


def _send(url: str, conversation_id: str, key: str, bodies: list[bytes]) -> None:
    headers = {"X-Session-API-Key": key, "Content-Type": "application/json"}
    with httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as http:
        for body in bodies:
            http.post(f"/api/v1/webhooks/events/{conversation_id}", content=body).raise_for_status()


def _insert_all(database: Database, conversations: list[Conversation]) -> float:
    def fill(conversation: Conversation) -> None:
        for body in bodies[conversation.id]:
            rows = [
                webhook_reports.read_event(event).as_row(conversation.id).model_dump(exclude={"seq"})
                for event in json.loads(body)
            ]
            with database.transaction() as session:
                session.execute(insert(Event), rows)

    with ThreadPoolExecutor(SENDERS) as pool:
        bodies = {conversation.id: list(_batches()) for conversation in conversations}
        began = time.perf_counter()
        list(pool.map(fill, conversations))
        return SENDERS * BATCHES * BATCH / (time.perf_counter() - began)


def _batches() -> Iterator[bytes]:
    for _ in range(BATCHES):
        yield json.dumps([_event() for _ in range(BATCH)]).encode()


def _event() -> dict[str, Any]:
    observation = {"kind": "ExecuteBashObservation", "content": [{"type": "text", "text": TEXT}], "exit_code": 0}
    return {
        "id": str(uuid4()),
        "timestamp": "2026-11-20T12:00:00.000000",
        "source": "environment",
        "kind": "ObservationEvent",
        "tool_name": "terminal",
        "observation": observation,
    }

"""The database is down (PostgreSQL) or locked beyond the busy timeout (SQLite), while everything else runs."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from sqlalchemy import make_url
from sqlmodel import col, select

from deploy.demo.scripted_model import Finish, Gate, Hold, RunCommand, Script, ScriptedModel
from shared.agent_server.door import DoorAccess, open_access
from shared.models import Event, Sandbox
from shared.sandboxes import status
from tests.api.agent_reports import event_report
from tests.fixtures.model import MODEL_KEY
from tests.integration.test_main_job import REQUEST
from tests.services import http
from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.engine import SANDBOX_IMAGE, TINY_IMAGE
from tests.services.postgres import Postgres
from tests.services.private_engine import PrivateEngine
from tests.waiting import eventually

# The store and the engines must agree within this time after the last fault. The chaos tests, which run alone
# on the machine, check the promised 30 s.
RECOVERY_SECONDS = 120.0
LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Outage:
    """An outage of the database during `lasts`, which is longer than the time until requests fail."""

    reads_fail: bool
    lasts: Callable[[], AbstractContextManager[None]]


@pytest.fixture
def outage(database_url: str, request: pytest.FixtureRequest) -> Outage:
    if database_url.startswith("sqlite"):
        file = str(make_url(database_url).database)
        return Outage(reads_fail=False, lasts=lambda: locked_by_another_process(file))
    server: Postgres = request.getfixturevalue("postgres_server")
    return Outage(reads_fail=True, lasts=lambda: stopped(server))


@contextmanager
def locked_by_another_process(file: str) -> Iterator[None]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", LOCK, file], stdin=pipe, stdout=pipe, text=True) as locker:
        assert locker.stdout is not None
        assert locker.stdout.readline() == "locked\n"
        began = time.monotonic()
        yield
        assert time.monotonic() - began > 10, "the lock lasted less than the busy timeout"
        locker.communicate()
    assert locker.returncode == 0


@contextmanager
def stopped(server: Postgres) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.start()


@pytest.fixture
def gate() -> Gate:
    """The gate that delays the agent until the database is down."""
    return Gate()


@pytest.fixture
def alice(installed: Deployment, engine: PrivateEngine, gate: Gate) -> Iterator[Client]:
    """A user of the running service, whose agent waits at the gate."""
    installed.prepare(SANDBOX_IMAGE, TINY_IMAGE)
    installed.start_api()
    installed.start_worker()
    script = Script([Hold(gate, RunCommand("echo done > done.txt")), Finish("Done.")], title="Work")
    with (
        ScriptedModel({"openai/worker": script}, engine.gateway, api_key=MODEL_KEY) as model,
        installed.user("alice") as alice,
    ):
        settings = {"llm_model": "openai/worker", "llm_api_key": MODEL_KEY, "llm_base_url": model.base_url}
        assert alice.post("/api/settings", json=settings).status_code == 200
        yield alice


def test_requests_without_a_database_return_503_and_lose_nothing(
    installed: Deployment, alice: Client, engine: PrivateEngine, gate: Gate, outage: Outage
) -> None:
    conversation = start_conversation(alice, gate)
    agent_server = find_agent_server(installed, conversation)
    paused, deleted = [alice.start_sandbox(TINY_IMAGE) for _ in range(2)]
    for sandbox_id in (paused, deleted):
        alice.await_sandbox(sandbox_id, "RUNNING")
    installed.freeze_between_writes("worker")  # so that none of the three requests is executed before the outage
    started = alice.start_sandbox(TINY_IMAGE)
    assert alice.post(f"/api/v1/sandboxes/{paused}/pause").status_code == 200
    assert alice.delete(f"/api/v1/sandboxes/{deleted}").status_code == 200

    own_event = event_report(source="user")
    with outage.lasts():
        installed.wake("worker")
        with ThreadPoolExecutor(8) as pool:
            failing = [pool.submit(send) for send in writes(alice, paused)]
            failing.append(pool.submit(report, installed, conversation, own_event))
            assert_readiness(installed, outage)
            assert_reads(alice, outage)
            gate.open()
            reported = eventually(lambda: events_at(agent_server, conversation, open_access(installed.vault)))
        for response in failing:
            assert_unavailable(response.result())

    recovered = time.monotonic()
    eventually(lambda: http.get(f"{installed.url}/ready", timeout=5).status_code == 200, deadline_seconds=180)
    eventually(lambda: is_reconciled(alice, paused=paused, deleted=deleted, started=started), deadline_seconds=180)
    for _ in range(2):  # a retry, as an agent server sends it, and a superfluous one
        assert report(installed, conversation, own_event).status_code == 200
    wanted = {own_event["id"], *reported}
    eventually(lambda: wanted <= set(stored_events(installed, conversation["id"])), deadline_seconds=180)
    assert time.monotonic() - recovered < RECOVERY_SECONDS

    stored = stored_events(installed, conversation["id"])
    assert len(stored) == len(set(stored))
    eventually(lambda: listed(alice, conversation["id"])["execution_status"] == "finished")
    names = sorted(f"aw-{sandbox_id}" for sandbox_id in (paused, started, conversation["sandbox_id"]))
    # Lists leave out a sandbox whose deletion was requested; its container and its files are removed later.
    eventually(lambda: sorted(engine.containers()) == sorted(engine.volumes()) == names)


def start_conversation(alice: Client, gate: Gate) -> dict[str, Any]:
    """A conversation whose agent waits at the gate, as the lists show it."""
    task = alice.await_start(alice.start_conversation(**REQUEST))
    assert gate.reached.wait(30)
    return listed(alice, str(task["app_conversation_id"]))


def writes(alice: Client, sandbox_id: str) -> list[Callable[[], httpx.Response]]:
    return [
        lambda: alice.post("/api/v1/sandboxes"),
        lambda: alice.post(f"/api/v1/sandboxes/{sandbox_id}/resume"),
        lambda: alice.post("/api/settings", json={"language": "en"}),
        lambda: alice.post("/api/v1/app-conversations", json=REQUEST),
    ]


def report(service: Deployment, conversation: dict[str, Any], event: dict[str, Any]) -> httpx.Response:
    """Send an event as an agent server does."""
    url = f"{service.url}/api/v1/webhooks/events/{conversation['id']}"
    return http.post(url, json=[event], headers=session_key(conversation), timeout=60)


def assert_unavailable(response: httpx.Response) -> None:
    assert response.status_code == 503, (response.request.url, response.text)
    assert int(response.headers["Retry-After"]) > 0
    assert set(response.json()) == {"detail", "request_id"}


def assert_readiness(service: Deployment, outage: Outage) -> None:
    response = http.get(f"{service.url}/ready", timeout=30)
    if outage.reads_fail:
        assert_unavailable(response)
    else:
        assert response.status_code == 200
    assert http.get(f"{service.url}/alive", timeout=5).status_code == 200


def assert_reads(alice: Client, outage: Outage) -> None:
    """Check that reads work on SQLite, whose readers do not wait for a writer, and fail without PostgreSQL."""
    for path in ("/api/v1/sandboxes/search", "/api/v1/app-conversations/search", "/api/v1/settings"):
        response = alice.get(path)
        if outage.reads_fail:
            assert_unavailable(response)
        else:
            assert response.status_code == 200, response.text


def find_agent_server(service: Deployment, conversation: dict[str, Any]) -> str:
    """The URL of the conversation's agent server at its node's door: the API can't forward without a database."""
    with service.database.reading() as session:
        url = status.agent_server(session.get_one(Sandbox, conversation["sandbox_id"]).exposed_urls)
    assert url is not None
    return url


def events_at(agent_server: str, conversation: dict[str, Any], door: DoorAccess) -> list[str]:
    """The ids of the conversation's events at its agent server; empty until its agent has finished."""
    url = f"{agent_server}/api/conversations/{conversation['id']}/events/search"
    headers = session_key(conversation) | door.headers
    items = http.get(url, params={"limit": 100}, headers=headers).json()["items"]
    ended = any(item.get("key") == "execution_status" and item.get("value") == "finished" for item in items)
    return [item["id"] for item in items] if ended else []


def stored_events(service: Deployment, conversation_id: str) -> list[str]:
    with service.database.reading() as session:
        return list(session.exec(select(Event.id).where(col(Event.conversation_id) == conversation_id)).all())


def session_key(conversation: dict[str, Any]) -> dict[str, str]:
    return {"X-Session-API-Key": conversation["session_api_key"]}


def listed(alice: Client, conversation_id: str) -> dict[str, Any]:
    found: dict[str, Any] = alice.read("/api/v1/app-conversations", ids=conversation_id)[0]
    return found


def is_reconciled(alice: Client, *, paused: str, deleted: str, started: str) -> bool:
    found = [(alice.sandbox(sandbox_id) or {}).get("status") for sandbox_id in (paused, started, deleted)]
    return found == ["PAUSED", "RUNNING", None]

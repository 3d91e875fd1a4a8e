"""The check of a node's door is a periodic task: however long it takes, no heartbeat waits for it."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from threading import Event
from typing import NoReturn

import httpx
import pytest

from shared.models import Node
from tests.factories import DOOR, NODE_ID
from tests.waiting import eventually
from tests.worker.scenarios import row
from worker.__main__ import make_context, make_periodic_tasks
from worker.agent_server.transport import open_client
from worker.celery_app import app
from worker.context import WorkerContext
from worker.loops.door_check import DoorCheck
from worker.loops.health_monitor import LivenessMonitor
from worker.loops.heartbeat import send_heartbeat
from worker.settings import WorkerSettings

NAME = "node-a.example"
URL = f"http://{NAME}:3001"


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    """The worker's client of doors."""
    with open_client(DOOR) as client:
        yield client


def named(context: WorkerContext) -> WorkerContext:
    """A worker with this engine and database, and otherwise with what the process of a worker has."""
    made = make_context(context.shared, WorkerSettings(node=NODE_ID, advertised_host=NAME), app)
    for opened in (made.database, made.renewer.database):
        opened.close()
    return replace(context, http=made.http, settings=made.settings, impairment_checks=made.impairment_checks)


def test_heartbeat_looks_no_name_up(context: WorkerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[str] = []

    def look_up(host: str, *_: object, **__: object) -> NoReturn:
        looked_up.append(host)
        raise socket.gaierror("Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    send_heartbeat(named(context))
    assert looked_up == []


def test_heartbeat_is_stored_while_the_door_is_checked(context: WorkerContext, monitor: LivenessMonitor) -> None:
    requested, released = Event(), Event()

    def hang(_: httpx.Request) -> NoReturn:
        requested.set()
        released.wait(60)
        raise httpx.ReadTimeout("timed out")

    with httpx.Client(transport=httpx.MockTransport(hang)) as http:
        door = DoorCheck(http, URL)
        working = replace(context, impairment_checks=[door.find_problem])
        tasks = {task._thread.name: task for task in make_periodic_tasks(working, monitor, door)}
        tasks["door"].start()
        assert requested.wait(60)
        before = row(context, Node, NODE_ID).heartbeat_at
        tasks["heartbeat"]._function()
        assert row(context, Node, NODE_ID).heartbeat_at > before
        assert not released.is_set()
        released.set()
        assert eventually(door.find_problem) == f"the node's door does not respond: ReadTimeout ({URL})"
        tasks["door"].stop()


def test_change_of_the_door_is_reported_at_once(
    context: WorkerContext, http: httpx.Client, monitor: LivenessMonitor, unused_port: int
) -> None:
    settings = context.settings.model_copy(update={"heartbeat_seconds": 3600.0})
    door = DoorCheck(http, f"http://127.0.0.1:{unused_port}")
    working = replace(context, settings=settings, impairment_checks=[door.find_problem])
    tasks = {task._thread.name: task for task in make_periodic_tasks(working, monitor, door)}
    before = row(context, Node, NODE_ID).heartbeat_at
    tasks["heartbeat"].start()
    eventually(lambda: row(context, Node, NODE_ID).heartbeat_at > before)
    assert row(context, Node, NODE_ID).impaired_reason is None
    tasks["door"].start()
    eventually(lambda: row(context, Node, NODE_ID).impaired_reason)
    for name in ("door", "heartbeat"):
        tasks[name].stop()

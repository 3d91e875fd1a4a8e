"""A door that is down, or rejects its worker, proves no failure of the agent servers behind it."""

from dataclasses import replace

import httpx
import pytest

from shared.agent_server.errors import DoorUnavailable
from shared.changes import change_feed
from shared.clock import after, now
from shared.models import Node, Sandbox, StartTask
from shared.states import Desired, Reason, Stage, Status
from tests.doubles import ImmediateExecutor
from tests.factories import DOOR, NODE_ID, ApiUser
from tests.fakes.engine import FakeEngine
from tests.worker.scenarios import (
    change,
    claim,
    configure,
    deliver,
    request_start,
    row,
    running,
    set_desired,
    start,
    warm,
)
from worker.agent_server.transport import open_client
from worker.context import WorkerContext
from worker.conversations.start import start_conversation
from worker.engine.protocol import ContainerState
from worker.lease_runner import UNAVAILABLE_SECONDS
from worker.loops.door_check import DoorCheck
from worker.loops.health_monitor import SHARDS, LivenessMonitor
from worker.loops.heartbeat import send_heartbeat
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile

# More runs and failed attempts than a failure of an agent server itself is allowed.
TIMES = 12


@pytest.fixture
def doorless(context: WorkerContext) -> WorkerContext:
    """Context of the same worker, whose door does not respond."""

    def refuse(_: httpx.Request) -> httpx.Response:
        raise DoorUnavailable("the node's door does not respond: ConnectError")

    return replace(context, http=httpx.Client(transport=httpx.MockTransport(refuse)))


def test_running_sandboxes_keep_running(
    context: WorkerContext, doorless: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    sandbox_id = running(context, user)
    settings = doorless.settings.model_copy(update={"health_probe_seconds": 30.0, "health_timeout": 60.0})
    monitor = LivenessMonitor(
        replace(doorless, settings=settings), probes=ImmediateExecutor(), checks=ImmediateExecutor()
    )
    for _ in range(TIMES * len(SHARDS)):
        monitor.probe_next_shard()
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.reason, found.due_at) == (Status.RUNNING, None, None)
    assert engine.containers[container_name(sandbox_id)].state == ContainerState.RUNNING


def test_sandbox_is_probed_again_once_the_door_is_back(
    context: WorkerContext, doorless: WorkerContext, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[str] = []
    running(context, user)
    monkeypatch.setattr(context.engine, "requested", requested.append)
    monitor = LivenessMonitor(doorless, probes=ImmediateExecutor(), checks=ImmediateExecutor())
    for _ in SHARDS:
        monitor.probe_next_shard()
    assert requested == []
    monkeypatch.setattr(monitor, "_context", context)
    for _ in SHARDS:
        monitor.probe_next_shard()
    assert len(requested) == 1


def test_sandboxes_are_reached_at_their_door_s_new_address_after_the_next_probe(
    context: WorkerContext, user: ApiUser
) -> None:
    sandbox_id = running(context, user)
    settings = context.settings.model_copy(update={"door_url": "http://192.168.1.2:4001"})
    moved = replace(context, settings=settings)
    assert not at_door(moved, sandbox_id)
    monitor = LivenessMonitor(moved, probes=ImmediateExecutor(), checks=ImmediateExecutor())
    for _ in SHARDS:
        monitor.probe_next_shard()
    deliver(moved)
    assert at_door(moved, sandbox_id)
    assert row(context, Sandbox, sandbox_id).due_at is None


def at_door(context: WorkerContext, sandbox_id: str) -> bool:
    """Whether all of the sandbox's URLs are at the worker's door."""
    urls = [str(url["url"]) for url in row(context, Sandbox, sandbox_id).exposed_urls or []]
    return bool(urls) and all(url.startswith(f"{context.settings.door_url}/") for url in urls)


def test_start_waits_for_the_door_and_shows_the_reason(
    context: WorkerContext, doorless: WorkerContext, user: ApiUser
) -> None:
    sandbox_id = start(context, user)
    for _ in range(TIMES):
        reconcile(doorless, sandbox_id)
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.reason) == (Status.STARTING, Reason.DOOR_UNAVAILABLE)
    assert found.detail == "the node's door does not respond: ConnectError; the worker retries"
    assert found.due_at is not None
    reconcile(context, sandbox_id)
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.reason, found.detail) == (Status.RUNNING, None, None)


def test_claimed_sandbox_waits_for_the_door(context: WorkerContext, doorless: WorkerContext, user: ApiUser) -> None:
    sandbox_id = warm(context)
    reconcile(context, sandbox_id)
    assert claim(context, user) == sandbox_id
    for _ in range(TIMES):
        reconcile(doorless, sandbox_id)
    assert row(context, Sandbox, sandbox_id).reason == Reason.DOOR_UNAVAILABLE
    reconcile(context, sandbox_id)
    assert row(context, Sandbox, sandbox_id).status == Status.RUNNING


@pytest.mark.parametrize(("desired", "status"), [(Desired.PAUSED, Status.PAUSED), (Desired.DELETED, Status.DELETED)])
def test_pauses_and_deletes_need_no_door(
    context: WorkerContext, doorless: WorkerContext, user: ApiUser, desired: Desired, status: Status
) -> None:
    sandbox_id = running(context, user)
    set_desired(context, sandbox_id, desired)
    reconcile(doorless, sandbox_id)
    assert row(context, Sandbox, sandbox_id).status == status


def test_start_of_a_conversation_waits_for_the_door(
    context: WorkerContext, doorless: WorkerContext, user: ApiUser
) -> None:
    configure(context, user)
    task_id = request_start(context, user, running(context, user))
    for _ in range(TIMES):
        start_conversation(doorless, task_id)
    found = row(context, StartTask, task_id)
    assert found.stage not in (Stage.ERROR, Stage.READY)
    assert found.due_at is not None
    start_conversation(context, task_id)
    deliver(context)
    assert row(context, StartTask, task_id).stage == Stage.READY


def test_start_of_a_conversation_waits_for_the_door_with_rare_retries_and_no_changes(
    context: WorkerContext, doorless: WorkerContext, user: ApiUser
) -> None:
    configure(context, user)
    task_id = request_start(context, user, running(context, user))
    start_conversation(doorless, task_id)
    waiting, before = row(context, StartTask, task_id), last_change(context, user)
    for _ in range(TIMES):
        change(context, StartTask, task_id, due_at=now())
        earliest = after(UNAVAILABLE_SECONDS)
        start_conversation(doorless, task_id)
        found = row(context, StartTask, task_id)
        assert found.due_at is not None
        assert found.due_at >= earliest
    assert (found.stage, found.updated_at) == (waiting.stage, waiting.updated_at)
    assert last_change(context, user) == before


def last_change(context: WorkerContext, user: ApiUser) -> int:
    """The number of the newest entry in the user's change feed."""
    with context.database.reading() as session:
        return change_feed.last(session, [user.id])[user.id]


def test_heartbeat_reports_a_door_that_is_down(context: WorkerContext, unused_port: int) -> None:
    url = f"http://127.0.0.1:{unused_port}"
    with open_client(DOOR) as http:
        door = DoorCheck(http, url)
        assert door.run()
    send_heartbeat(replace(context, impairment_checks=[door.find_problem]))
    found = row(context, Node, NODE_ID)
    assert found.impaired_reason == f"the node's door does not respond: ConnectError ({url})"
    assert found.closed_reason is None
    send_heartbeat(context)
    assert row(context, Node, NODE_ID).impaired_reason is None

"""Drift is observed: through the engine's events, without them, and while the worker is busy."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from shared.models import Node, Sandbox
from tests.services.client import Client
from tests.services.deployment import DOOR, Deployment, deployed
from tests.services.engine import TINY_IMAGE
from tests.services.engine_proxy import EngineProxy, running_engine_proxy
from tests.services.private_engine import PrivateEngine, running_private_engine
from tests.services.stores import SqliteStores
from tests.services.valkey import Valkey
from tests.waiting import eventually

DEAF_IMAGE = "agent-workspace/tiny:deaf"
NEVER = "3600"
# An operator's commands on a running sandbox, in order, each with the resulting status and reason.
CHANGES = [
    (("pause",), "PAUSED", "paused_outside"),
    (("unpause",), "RUNNING", None),
    (("kill",), "ERROR", "exit_code"),
    (("start",), "RUNNING", None),
    (("stop", "--time", "0"), "ERROR", "exit_code"),
    (("start",), "RUNNING", None),
    (("rm", "--force"), "ERROR", "container_missing"),
]


@pytest.fixture(scope="module")
def engine() -> Iterator[PrivateEngine]:
    with running_private_engine([TINY_IMAGE]) as engine:
        engine.docker("tag", TINY_IMAGE, DEAF_IMAGE)
        yield engine


@pytest.fixture
def proxy(engine: PrivateEngine) -> Iterator[EngineProxy]:
    with running_engine_proxy(engine) as proxy:
        yield proxy
    engine.clear()


@pytest.fixture
def service(proxy: EngineProxy, sqlite_stores: SqliteStores, valkey: Valkey) -> Iterator[Deployment]:
    """The service with a running API and no worker."""
    with (
        sqlite_stores.fresh() as database_url,
        deployed(proxy, TINY_IMAGE, database_url=database_url, broker_url=valkey.url) as service,
    ):
        service.add_spec(DEAF_IMAGE, {"TINY_NEVER_HEALTHY": "1"})
        service.start_api()
        yield service


@pytest.fixture
def alice(service: Deployment) -> Iterator[Client]:
    with service.user("alice") as client:
        yield client


def follow(service: Deployment, **environment: str) -> None:
    """Start a worker, and wait until it follows the engine's events."""
    service.start_worker(**environment)
    eventually(lambda: "following_events" in service.log())


def run(alice: Client) -> str:
    """Start a sandbox, and wait until it runs."""
    sandbox_id = alice.start_sandbox()
    alice.await_sandbox(sandbox_id, "RUNNING")
    return sandbox_id


def operate(engine: PrivateEngine, sandbox_id: str, *command: str) -> None:
    """Run an engine command on a sandbox's container."""
    engine.docker(*command, f"aw-{sandbox_id}")


def is_idle(service: Deployment, sandbox_id: str) -> bool:
    """Whether no job has leased the sandbox and none is due, so that no job observes a change by chance."""
    with service.database.reading() as session:
        row = session.get_one(Sandbox, sandbox_id)
        return row.lease_until is None and row.due_at is None


def impairment(service: Deployment, node: str) -> str | None:
    """The impairment of the node."""
    with service.database.reading() as session:
        return session.get_one(Node, node).impaired_reason


def state_of(alice: Client, sandbox_id: str) -> tuple[Any, Any]:
    """The status and the reason of a sandbox in the API."""
    found = alice.sandbox(sandbox_id) or {}
    return found.get("status"), found.get("reason")


def assert_observed(alice: Client, engine: PrivateEngine, sandbox_id: str) -> None:
    """Apply all changes, and wait until each one is observed."""
    for command, status, reason in CHANGES:
        operate(engine, sandbox_id, *command)
        eventually(lambda: state_of(alice, sandbox_id) == (status, reason))  # noqa: B023 - called immediately
    assert engine.containers() == []


def test_changes_are_observed_through_events_only(service: Deployment, alice: Client, engine: PrivateEngine) -> None:
    follow(service, AW_RESYNC_SECONDS=NEVER, AW_HEALTH_PROBE_SECONDS=NEVER)
    assert_observed(alice, engine, run(alice))


@pytest.mark.parametrize("how", ["cut", "stall"])
def test_changes_are_observed_without_events(
    service: Deployment, alice: Client, engine: PrivateEngine, proxy: EngineProxy, how: str
) -> None:
    follow(service, AW_RESYNC_SECONDS="1")
    sandbox_id = run(alice)
    proxy.cut() if how == "cut" else proxy.stall()
    assert proxy.interrupted
    assert_observed(alice, engine, sandbox_id)


@pytest.mark.nightly  # tests of the resync cover this for each change, with an engine in memory
def test_changes_without_a_subscriber_are_observed_later(
    service: Deployment, alice: Client, engine: PrivateEngine, proxy: EngineProxy
) -> None:
    follow(service, AW_RESYNC_SECONDS=NEVER, AW_HEALTH_PROBE_SECONDS=NEVER)
    sandbox_id = run(alice)
    eventually(lambda: is_idle(service, sandbox_id))
    proxy.cut()
    engine.docker("kill", f"aw-{sandbox_id}")
    interrupted = proxy.interrupted
    eventually(lambda: proxy.interrupted > interrupted)  # the worker has tried to reconnect
    assert state_of(alice, sandbox_id) == ("RUNNING", None)
    proxy.repair()
    eventually(lambda: state_of(alice, sandbox_id) == ("ERROR", "exit_code"))


@pytest.mark.nightly  # tests of the resync cover this for each change, with an engine in memory
@pytest.mark.parametrize("resync", [NEVER, "1"])
def test_change_is_observed_while_every_thread_is_busy(
    service: Deployment, alice: Client, engine: PrivateEngine, proxy: EngineProxy, resync: str
) -> None:
    follow(service, AW_RESYNC_SECONDS=resync, AW_CONCURRENCY="1")
    if resync != NEVER:
        proxy.cut()
    sandbox_id = run(alice)
    deaf = alice.start_sandbox(DEAF_IMAGE)  # boots until the timeout of two minutes
    eventually(lambda: f"aw-{deaf}" in engine.containers())
    for command, status, reason in CHANGES[:3]:
        operate(engine, sandbox_id, *command)
        eventually(lambda: state_of(alice, sandbox_id) == (status, reason))  # noqa: B023 - called immediately
    assert state_of(alice, deaf) == ("STARTING", None)
    assert alice.delete(f"/api/v1/sandboxes/{deaf}").status_code == 200
    eventually(lambda: f"aw-{deaf}" not in engine.containers())


@pytest.mark.nightly  # tests of the resync cover this for each change, with an engine in memory
def test_change_is_observed_while_the_broker_is_down(
    service: Deployment, alice: Client, engine: PrivateEngine, valkey: Valkey
) -> None:
    follow(service, AW_RESYNC_SECONDS=NEVER)
    sandbox_id = run(alice)
    valkey.kill()
    engine.docker("kill", f"aw-{sandbox_id}")
    eventually(lambda: state_of(alice, sandbox_id) == ("ERROR", "exit_code"))
    valkey.start()


def test_sandbox_that_an_operator_unpaused_is_observed_as_running(
    service: Deployment, alice: Client, engine: PrivateEngine
) -> None:
    follow(service, AW_RESYNC_SECONDS=NEVER)
    sandbox_id = run(alice)
    assert alice.post(f"/api/v1/sandboxes/{sandbox_id}/pause").status_code == 200
    alice.await_sandbox(sandbox_id, "PAUSED")
    engine.docker("unpause", f"aw-{sandbox_id}")
    eventually(lambda: state_of(alice, sandbox_id) == ("RUNNING", "resumed_outside"))


def test_hanging_agent_server_in_a_running_container_is_an_error(
    service: Deployment, alice: Client, engine: PrivateEngine
) -> None:
    follow(service, AW_HEALTH_PROBE_SECONDS="2", AW_HEALTH_TIMEOUT="8", AW_STOP_SECONDS="1")
    hung, well = run(alice), run(alice)
    engine.docker("exec", f"aw-{hung}", "kill", "-STOP", "-1")
    eventually(lambda: state_of(alice, hung) == ("ERROR", "health_timeout"), deadline_seconds=120)
    assert state_of(alice, well) == ("RUNNING", None)
    assert alice.post(f"/api/v1/sandboxes/{hung}/resume").status_code == 200
    eventually(lambda: state_of(alice, hung) == ("RUNNING", None))


def test_door_that_is_down_ends_no_sandbox(service: Deployment, alice: Client, engine: PrivateEngine) -> None:
    follow(service, AW_HEALTH_PROBE_SECONDS="0.5", AW_HEALTH_TIMEOUT="1", AW_HEARTBEAT_SECONDS="1")
    node = next(iter(service.engines))
    well = run(alice)
    service.kill(f"{DOOR}{node}")
    began = time.monotonic()
    started = alice.start_sandbox()
    eventually(lambda: state_of(alice, started) == ("STARTING", "door_unavailable"))
    eventually(lambda: "the node's door does not respond" in str(impairment(service, node)))
    eventually(lambda: time.monotonic() - began > 3)  # three times the timeout of an agent server
    assert state_of(alice, well) == ("RUNNING", None)
    assert len(engine.docker("ps", "--quiet").split()) == 2
    service.start_door(node)
    alice.await_sandbox(started, "RUNNING")
    eventually(lambda: impairment(service, node) is None)
    assert state_of(alice, well) == ("RUNNING", None)

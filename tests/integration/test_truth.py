"""A change behind our back is told: by the engine's events, without them, and whatever else the worker is busy with."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.models import Sandbox
from tests.services.client import Client
from tests.services.deployment import Deployment, deployed
from tests.services.engine import TINY_IMAGE
from tests.services.engine_proxy import EngineProxy, running_engine_proxy
from tests.services.private_engine import PrivateEngine, running_private_engine
from tests.services.stores import SqliteStores
from tests.services.valkey import Valkey
from tests.waiting import eventually

DEAF_IMAGE = "agent-workspace/tiny:deaf"
NEVER = "3600"
# What an operator does to a running sandbox, one after the other, and what the API says then.
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
def service(proxy: EngineProxy, sqlite_stores: SqliteStores, valkey: Valkey, tmp_path: Path) -> Iterator[Deployment]:
    """The service, its API running, no worker yet."""
    with (
        sqlite_stores.fresh(tmp_path) as database_url,
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
    """A sandbox that runs."""
    sandbox_id = alice.start_sandbox()
    alice.await_sandbox(sandbox_id, "RUNNING")
    return sandbox_id


def operate(engine: PrivateEngine, sandbox_id: str, *command: str) -> None:
    """Do something to a container."""
    engine.docker(*command, f"aw-{sandbox_id}")


def is_at_rest(service: Deployment, sandbox_id: str) -> bool:
    """Whether no job has it in hand, and none is to come: who looks again saw the change by chance."""
    with service.database.reading() as session:
        row = session.get_one(Sandbox, sandbox_id)
        return row.lease_until is None and row.due_at is None


def told(alice: Client, sandbox_id: str) -> tuple[Any, Any]:
    """What the API says of a sandbox."""
    found = alice.sandbox(sandbox_id) or {}
    return found.get("status"), found.get("reason")


def assert_told(alice: Client, engine: PrivateEngine, sandbox_id: str) -> None:
    """Every change is told before the next one is made."""
    for command, status, reason in CHANGES:
        operate(engine, sandbox_id, *command)
        eventually(lambda: told(alice, sandbox_id) == (status, reason))  # noqa: B023 - called at once
    assert engine.containers() == []


def test_changes_are_told_by_events_alone(service: Deployment, alice: Client, engine: PrivateEngine) -> None:
    follow(service, AW_RESYNC_SECONDS=NEVER, AW_PROBE_SECONDS=NEVER)
    assert_told(alice, engine, run(alice))


@pytest.mark.parametrize("how", ["cut", "stall"])
def test_changes_are_told_without_events(
    service: Deployment, alice: Client, engine: PrivateEngine, proxy: EngineProxy, how: str
) -> None:
    follow(service, AW_RESYNC_SECONDS="1")
    sandbox_id = run(alice)
    proxy.cut() if how == "cut" else proxy.stall()
    assert proxy.harmed
    assert_told(alice, engine, sandbox_id)


def test_what_happened_while_nobody_followed_is_told(
    service: Deployment, alice: Client, engine: PrivateEngine, proxy: EngineProxy
) -> None:
    follow(service, AW_RESYNC_SECONDS=NEVER, AW_PROBE_SECONDS=NEVER)
    sandbox_id = run(alice)
    eventually(lambda: is_at_rest(service, sandbox_id))
    proxy.cut()
    engine.docker("kill", f"aw-{sandbox_id}")
    harmed = proxy.harmed
    eventually(lambda: proxy.harmed > harmed)  # it has tried to follow again
    assert told(alice, sandbox_id) == ("RUNNING", None)
    proxy.mend()
    eventually(lambda: told(alice, sandbox_id) == ("ERROR", "exit_code"))


@pytest.mark.parametrize("resync", [NEVER, "1"])
def test_change_is_told_while_jobs_keep_every_thread_busy(
    service: Deployment, alice: Client, engine: PrivateEngine, proxy: EngineProxy, resync: str
) -> None:
    follow(service, AW_RESYNC_SECONDS=resync, AW_CONCURRENCY="1")
    if resync != NEVER:
        proxy.cut()
    sandbox_id = run(alice)
    deaf = alice.start_sandbox(DEAF_IMAGE)  # boots for as long as it may: two minutes
    eventually(lambda: f"aw-{deaf}" in engine.containers())
    for command, status, reason in CHANGES[:3]:
        operate(engine, sandbox_id, *command)
        eventually(lambda: told(alice, sandbox_id) == (status, reason))  # noqa: B023 - called at once
    assert told(alice, deaf) == ("STARTING", None)
    assert alice.delete(f"/api/v1/sandboxes/{deaf}").status_code == 200
    eventually(lambda: f"aw-{deaf}" not in engine.containers())


def test_change_is_told_while_the_broker_is_away(
    service: Deployment, alice: Client, engine: PrivateEngine, valkey: Valkey
) -> None:
    follow(service, AW_RESYNC_SECONDS=NEVER)
    sandbox_id = run(alice)
    valkey.kill()
    engine.docker("kill", f"aw-{sandbox_id}")
    eventually(lambda: told(alice, sandbox_id) == ("ERROR", "exit_code"))
    valkey.start()


def test_sandbox_that_should_be_paused_and_was_let_go_on(
    service: Deployment, alice: Client, engine: PrivateEngine
) -> None:
    follow(service, AW_RESYNC_SECONDS=NEVER)
    sandbox_id = run(alice)
    assert alice.post(f"/api/v1/sandboxes/{sandbox_id}/pause").status_code == 200
    alice.await_sandbox(sandbox_id, "PAUSED")
    engine.docker("unpause", f"aw-{sandbox_id}")
    eventually(lambda: told(alice, sandbox_id) == ("RUNNING", "resumed_outside"))


def test_agent_server_that_hangs_in_a_container_that_runs(
    service: Deployment, alice: Client, engine: PrivateEngine
) -> None:
    follow(service, AW_PROBE_SECONDS="2", AW_HEALTH_TIMEOUT="8", AW_STOP_SECONDS="1")
    hung, well = run(alice), run(alice)
    engine.docker("exec", f"aw-{hung}", "kill", "-STOP", "-1")
    eventually(lambda: told(alice, hung) == ("ERROR", "health_timeout"), deadline_seconds=120)
    assert told(alice, well) == ("RUNNING", None)
    assert alice.post(f"/api/v1/sandboxes/{hung}/resume").status_code == 200
    eventually(lambda: told(alice, hung) == ("RUNNING", None))

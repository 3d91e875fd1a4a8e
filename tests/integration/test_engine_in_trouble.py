"""A real engine with failing responses: the failure is shown, and acknowledged requests are executed afterwards."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.services.client import Client
from tests.services.deployment import Deployment, deployed
from tests.services.engine import TINY_IMAGE
from tests.services.faulty_engine import Failure, FailureMode, FaultyEngine, running_faulty_engine
from tests.services.private_engine import PrivateEngine, running_private_engine
from tests.services.registry import Registry, running_registry
from tests.services.stores import SqliteStores
from tests.services.valkey import Valkey
from tests.waiting import eventually

ATTEMPTS = 2
# More than the attempts at a request that the engine rejects, after which a sandbox ends in ERROR.
FAILURES = ATTEMPTS + 1
PULL, CREATE = b"/images/create", b"/containers/create"
READS, WRITES = Failure(FailureMode.FAIL, writes=False), Failure(FailureMode.FAIL, reads=False)


@pytest.fixture(scope="module")
def private_engine() -> Iterator[PrivateEngine]:
    with running_private_engine([TINY_IMAGE]) as engine:
        yield engine


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with running_registry(TINY_IMAGE) as registry:
        yield registry


@pytest.fixture
def engine(private_engine: PrivateEngine) -> Iterator[FaultyEngine]:
    with running_faulty_engine(private_engine) as engine:
        yield engine
    private_engine.clear()


@pytest.fixture
def service(engine: FaultyEngine, sqlite_stores: SqliteStores, valkey: Valkey) -> Iterator[Deployment]:
    with (
        sqlite_stores.fresh() as database_url,
        deployed(engine, TINY_IMAGE, database_url=database_url, broker_url=valkey.url) as service,
    ):
        service.environment["AW_MAX_ATTEMPTS"] = str(ATTEMPTS)
        service.start()
        yield service


@pytest.fixture
def alice(service: Deployment) -> Iterator[Client]:
    with service.user("alice") as client:
        yield client


@pytest.fixture
def sandbox_id(alice: Client) -> str:
    sandbox_id = alice.start_sandbox()
    alice.await_sandbox(sandbox_id, "RUNNING")
    return sandbox_id


def state_of(alice: Client, sandbox_id: str) -> tuple[Any, Any]:
    found = alice.sandbox(sandbox_id) or {}
    return found.get("status"), found.get("reason")


def history(alice: Client, sandbox_id: str) -> list[str]:
    found = alice.get(f"/api/v1/sandboxes/{sandbox_id}/transitions").json()
    return [transition["to_status"] for transition in found]


def await_failures(engine: FaultyEngine) -> None:
    """Wait until `FAILURES` more responses of the engine have failed."""
    before = engine.injected.total()
    eventually(lambda: engine.injected.total() >= before + FAILURES, deadline_seconds=60)


@pytest.mark.nightly  # tests of starts and of lost responses to pauses cover this for each change
@pytest.mark.parametrize(("failure", "kind"), [(READS, "frozen"), (WRITES, "stopped")])
def test_pause_is_executed_after_the_recovery_of_the_engine(
    alice: Client, engine: FaultyEngine, sandbox_id: str, failure: Failure, kind: str
) -> None:
    engine.failure = failure
    assert alice.post(f"/api/v1/sandboxes/{sandbox_id}/pause", params={"kind": kind}).status_code == 200
    eventually(lambda: state_of(alice, sandbox_id) == ("RUNNING", "engine_error"))
    await_failures(engine)
    assert state_of(alice, sandbox_id) == ("RUNNING", "engine_error")
    engine.failure = None
    eventually(lambda: state_of(alice, sandbox_id) == ("PAUSED", None))
    assert history(alice, sandbox_id) == ["STARTING", "RUNNING", "PAUSED"]


def test_start_is_executed_after_the_recovery_of_the_engine(alice: Client, engine: FaultyEngine) -> None:
    engine.failure = WRITES
    sandbox_id = alice.start_sandbox()
    await_failures(engine)
    assert state_of(alice, sandbox_id) == ("STARTING", "engine_error")
    engine.failure = None
    alice.await_sandbox(sandbox_id, "RUNNING")
    assert history(alice, sandbox_id) == ["STARTING", "RUNNING"]


@pytest.mark.nightly  # tests of starts and of lost responses to pauses cover this for each change
def test_pull_is_executed_after_the_recovery_of_the_engine(
    service: Deployment, alice: Client, engine: FaultyEngine, registry: Registry
) -> None:
    image = f"{registry.address}/failed:1"
    service.add_spec(image, {})
    engine.failure = Failure(FailureMode.FAIL, path=PULL)
    sandbox_id = alice.start_sandbox(image)
    await_failures(engine)
    assert state_of(alice, sandbox_id) == ("STARTING", "engine_error")
    engine.failure = None
    alice.await_sandbox(sandbox_id, "RUNNING")
    assert history(alice, sandbox_id) == ["STARTING", "RUNNING"]


@pytest.mark.nightly  # tests of starts and of lost responses to pauses cover this for each change
def test_lost_response_to_a_pull_does_not_block_a_delete(
    service: Deployment, alice: Client, engine: FaultyEngine, private_engine: PrivateEngine, registry: Registry
) -> None:
    image = f"{registry.address}/lost:1"
    service.add_spec(image, {})
    engine.failure = Failure(FailureMode.SWALLOW, path=PULL)
    sandbox_id = alice.start_sandbox(image)
    eventually(lambda: engine.injected.total() > 0)
    engine.failure = None
    assert alice.delete(f"/api/v1/sandboxes/{sandbox_id}").status_code == 200
    eventually(lambda: alice.sandbox(sandbox_id) is None, deadline_seconds=60)
    eventually(lambda: not private_engine.containers() and not private_engine.volumes())


@pytest.mark.nightly  # tests of starts and of lost responses to pauses cover this for each change
def test_lost_response_to_a_create_does_not_block_a_delete(
    alice: Client, engine: FaultyEngine, private_engine: PrivateEngine
) -> None:
    engine.failure = Failure(FailureMode.SWALLOW, path=CREATE)
    sandbox_id = alice.start_sandbox()
    eventually(lambda: engine.injected.total() > 0)
    engine.failure = None
    assert alice.delete(f"/api/v1/sandboxes/{sandbox_id}").status_code == 200
    eventually(lambda: alice.sandbox(sandbox_id) is None, deadline_seconds=60)
    eventually(lambda: not private_engine.containers() and not private_engine.volumes(), deadline_seconds=60)


def test_lost_response_to_a_pause_does_not_block_a_delete(
    alice: Client, engine: FaultyEngine, private_engine: PrivateEngine, sandbox_id: str
) -> None:
    engine.failure = Failure(FailureMode.SWALLOW, reads=False)
    alice.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
    eventually(lambda: engine.injected.total() > 0)
    engine.failure = None
    assert alice.delete(f"/api/v1/sandboxes/{sandbox_id}").status_code == 200
    eventually(lambda: not private_engine.containers(), deadline_seconds=60)
    eventually(lambda: not private_engine.volumes())

"""The warm pool on real components: starts claim booted sandboxes, which have had no owner before."""

import json
from typing import Any

import pytest
from sqlmodel import col, select

from deploy.demo.scripted_model import ScriptedModel
from shared.models import Sandbox, SandboxSpec
from shared.sandboxes import specs
from shared.states import Desired, Status
from tests.fixtures.model import MODEL_KEY
from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.engine import SANDBOX_IMAGE, TINY_IMAGE
from tests.services.metrics import read_metrics
from tests.services.private_engine import PrivateEngine
from tests.waiting import eventually

OWN_IMAGE = "warm-pool/tiny:1"
POOL: dict[str, Any] = {"warm_target": 2, "warm_most": 3}


@pytest.fixture
def service(installed: Deployment) -> Deployment:
    installed.prepare(TINY_IMAGE)
    change(installed, **POOL)
    installed.start()
    return installed


def change(service: Deployment, image: str = TINY_IMAGE, **columns: object) -> None:
    with service.database.transaction() as session:
        specs.change(session, image, columns)


def warm_sandboxes(service: Deployment) -> dict[str, bool]:
    """The ids of the warm sandboxes, and whether each is ready and neither leased nor due."""
    with service.database.reading() as session:
        found = select(Sandbox).where(col(Sandbox.owner_id).is_(None), Sandbox.desired != Desired.DELETED)
        return {row.id: row.status == Status.RUNNING and is_idle(row) for row in session.exec(found).all()}


def is_idle(row: Sandbox) -> bool:
    return row.due_at is None and row.lease_until is None


def await_pool(service: Deployment, size: int = 2) -> set[str]:
    """Wait until the pool has that number of sandboxes and all are ready; return their ids."""

    def full() -> set[str]:
        found = warm_sandboxes(service)
        return set(found) if list(found.values()) == [True] * size else set()

    return eventually(full)


def await_no_pool(service: Deployment) -> None:
    eventually(lambda: not warm_sandboxes(service))


def test_start_claims_a_warm_sandbox_and_the_pool_is_refilled(
    service: Deployment, alice: Client, engine: PrivateEngine
) -> None:
    pool = await_pool(service)
    assert alice.read("/api/v1/sandboxes/search")["items"] == []
    sandbox_id = alice.start_sandbox()
    shown = alice.await_sandbox(sandbox_id, "RUNNING")
    assert sandbox_id in pool
    assert shown["session_api_key"]
    assert await_pool(service) - pool
    assert_metrics(service, alice)
    history = [
        (move["to_status"], move["reason"]) for move in alice.read(f"/api/v1/sandboxes/{sandbox_id}/transitions")
    ]
    assert history == [("STARTING", None), ("RUNNING", None), ("STARTING", "claimed"), ("RUNNING", None)]
    # The container is the same throughout, and its description contains no key.
    inspected = engine.docker("inspect", f"aw-{sandbox_id}")
    assert json.loads(inspected)[0]["RestartCount"] == 0
    with service.database.reading() as session:
        row = session.get_one(Sandbox, sandbox_id)
    for secret in (shown["session_api_key"], service.vault.decrypt(str(row.boot_key))):
        assert secret not in inspected
        assert secret not in service.log()


def assert_metrics(service: Deployment, client: Client) -> None:
    """Check the counts of one start from a pool of two sandboxes with one refill, counted by two processes."""
    assert client.get("/metrics").status_code == 401
    key = service.make_metrics_key()
    refills = ("agent_workspace_warm_pool_refill_seconds_count", TINY_IMAGE)

    def scrape() -> dict[tuple[str, ...], float]:
        return read_metrics(client.get("/metrics", headers={"Authorization": f"Bearer {key}"}).text)

    # A refill is counted after its commit: the sandbox may be visible before the count.
    eventually(lambda: scrape().get(refills) == 3)
    counts = scrape()
    starts = {source: counts["agent_workspace_sandbox_starts_total", source, TINY_IMAGE] for source in ("pool", "boot")}
    assert starts == {"pool": 1, "boot": 0}
    assert 0 < counts["agent_workspace_warm_pool_refill_seconds_sum", TINY_IMAGE] < 300
    assert counts["agent_workspace_warm_pool_members", TINY_IMAGE, "ready"] == 2


def test_claimed_sandbox_has_the_usual_lifecycle(service: Deployment, alice: Client, engine: PrivateEngine) -> None:
    await_pool(service)
    sandbox_id = alice.start_sandbox()
    first = alice.await_sandbox(sandbox_id, "RUNNING")
    assert alice.post(f"/api/v1/sandboxes/{sandbox_id}/pause", params={"kind": "stopped"}).status_code == 200
    alice.await_sandbox(sandbox_id, "PAUSED")
    assert alice.post(f"/api/v1/sandboxes/{sandbox_id}/resume").status_code == 200
    assert alice.await_sandbox(sandbox_id, "RUNNING")["session_api_key"] == first["session_api_key"]
    # An operator's restart boots the container without an owner. The worker initializes it again.
    engine.docker("restart", "--time", "0", f"aw-{sandbox_id}")
    eventually(lambda: (alice.sandbox(sandbox_id) or {})["status"] == "RUNNING")
    assert alice.delete(f"/api/v1/sandboxes/{sandbox_id}").status_code == 200
    eventually(lambda: f"aw-{sandbox_id}" not in engine.containers())


@pytest.mark.nightly  # tests of the pool cover this for each change, with an engine in memory
def test_warm_sandboxes_of_a_changed_spec_are_replaced(service: Deployment, engine: PrivateEngine) -> None:
    pool = await_pool(service)
    change(service, memory_bytes=256 * 1024**2)
    eventually(lambda: not pool & set(warm_sandboxes(service)))
    await_pool(service)
    eventually(lambda: len(engine.containers()) == 2)
    [first, *_] = engine.containers()
    assert json.loads(engine.docker("inspect", first))[0]["HostConfig"]["Memory"] == 256 * 1024**2


@pytest.mark.nightly  # tests of the pool cover this for each change, with an engine in memory
def test_warm_sandboxes_of_a_changed_image_are_replaced(service: Deployment, engine: PrivateEngine) -> None:
    change(service, warm_target=0, warm_most=0)
    await_no_pool(service)
    engine.docker("tag", TINY_IMAGE, OWN_IMAGE)
    service.add_spec(OWN_IMAGE, {})
    change(service, OWN_IMAGE, **POOL)
    pool = await_pool(service)
    engine.docker("commit", f"aw-{min(pool)}", OWN_IMAGE)
    eventually(lambda: not pool & set(warm_sandboxes(service)))
    await_pool(service)


def test_pool_follows_its_target(service: Deployment, engine: PrivateEngine) -> None:
    await_pool(service)
    change(service, warm_target=1, warm_most=1)
    await_pool(service, 1)
    change(service, warm_target=0, warm_most=0)
    await_no_pool(service)
    eventually(lambda: engine.containers() == [])


@pytest.mark.nightly  # tests of the pool cover this for each change, with an engine in memory
def test_failed_warm_sandbox_is_replaced(service: Deployment, engine: PrivateEngine) -> None:
    pool = await_pool(service)
    dead = pool.pop()
    engine.docker("kill", f"aw-{dead}")
    eventually(lambda: dead not in warm_sandboxes(service))
    await_pool(service)
    eventually(lambda: f"aw-{dead}" not in engine.containers())


def test_claim_of_a_dead_warm_sandbox_boots_a_new_container(
    service: Deployment, alice: Client, engine: PrivateEngine
) -> None:
    pool = await_pool(service)
    service.freeze_between_writes("worker")
    for warm_id in pool:
        engine.docker("kill", f"aw-{warm_id}")
    sandbox_id = alice.start_sandbox()
    assert sandbox_id in pool
    service.wake("worker")
    alice.await_sandbox(sandbox_id, "RUNNING")


def test_next_worker_completes_claims_of_a_dead_one(service: Deployment, alice: Client) -> None:
    pool = await_pool(service)
    service.kill("worker")
    started = [alice.start_sandbox() for _ in range(3)]
    assert set(started) & pool == pool
    service.start_worker()
    for sandbox_id in started:
        alice.await_sandbox(sandbox_id, "RUNNING")


@pytest.mark.nightly  # `test_deferred_init` covers the real agent server for each change
def test_real_agent_server_awaits_its_owner_and_converses(
    installed: Deployment, model: ScriptedModel, engine: PrivateEngine
) -> None:
    """Run a conversation in a sandbox that was booted without an owner, stopped, and booted again for its owner."""
    installed.prepare(SANDBOX_IMAGE)
    change(installed, SANDBOX_IMAGE, warm_target=1, warm_most=1)
    installed.start()
    [warm_id] = await_pool(installed, 1)
    with installed.user("alice") as alice:
        settings = {"llm_model": "openai/greeter", "llm_base_url": model.url, "llm_api_key": MODEL_KEY}
        assert alice.post("/api/settings", json=settings).status_code == 200
        task_id = alice.start_conversation()
        change(installed, SANDBOX_IMAGE, warm_target=0, warm_most=0)
        task = alice.await_start(task_id)
        assert task["sandbox_id"] == warm_id
        inspected = engine.docker("inspect", f"aw-{warm_id}")
        assert (alice.sandbox(warm_id) or {})["session_api_key"] not in inspected
        assert alice.post(f"/api/v1/sandboxes/{warm_id}/pause", params={"kind": "stopped"}).status_code == 200
        alice.await_sandbox(warm_id, "PAUSED")
        second = alice.await_start(alice.start_conversation(sandbox_id=warm_id))
        assert second["sandbox_id"] == warm_id


@pytest.mark.nightly  # tests of the pool cover this for each change, with an engine in memory
def test_specs_without_deferred_init_start_cold(installed: Deployment) -> None:
    installed.prepare(TINY_IMAGE)
    with installed.database.transaction() as session:
        session.get_one(SandboxSpec, TINY_IMAGE).env = {"TINY_EAGER": "1"}
    change(installed, **POOL)
    installed.start()

    def warm_detail() -> str:
        with installed.database.reading() as session:
            return session.get_one(SandboxSpec, TINY_IMAGE).warm_detail or ""

    eventually(lambda: warm_detail().startswith("not_dormant"))
    with installed.user("alice") as alice:
        alice.await_sandbox(alice.start_sandbox(), "RUNNING")

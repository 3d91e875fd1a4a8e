"""The warm pool on real parts: starts claim what is booted already, and nothing of it is anybody's before."""

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


def members(service: Deployment) -> dict[str, bool]:
    """The pool: ids, and whether each is ready, and nobody at it."""
    with service.database.reading() as session:
        found = select(Sandbox).where(col(Sandbox.owner_id).is_(None), Sandbox.desired != Desired.DELETED)
        return {row.id: row.status == Status.RUNNING and is_at_rest(row) for row in session.exec(found).all()}


def is_at_rest(row: Sandbox) -> bool:
    return row.due_at is None and row.lease_until is None


def await_pool(service: Deployment, size: int = 2) -> set[str]:
    """The pool, once it has so many members and all of them are ready."""

    def full() -> set[str]:
        found = members(service)
        return set(found) if list(found.values()) == [True] * size else set()

    return eventually(full)


def await_no_pool(service: Deployment) -> None:
    eventually(lambda: not members(service))


def test_start_claims_a_member_and_the_pool_is_filled_again(
    service: Deployment, alice: Client, engine: PrivateEngine
) -> None:
    pool = await_pool(service)
    assert alice.read("/api/v1/sandboxes/search")["items"] == []
    sandbox_id = alice.start_sandbox()
    shown = alice.await_sandbox(sandbox_id, "RUNNING")
    assert sandbox_id in pool
    assert shown["session_api_key"]
    assert await_pool(service) - pool
    assert_told(service, alice)
    history = [
        (move["to_status"], move["reason"]) for move in alice.read(f"/api/v1/sandboxes/{sandbox_id}/transitions")
    ]
    assert history == [("STARTING", None), ("RUNNING", None), ("STARTING", "claimed"), ("RUNNING", None)]
    # One container from first to last, and no key in what anybody may inspect.
    inspected = engine.docker("inspect", f"aw-{sandbox_id}")
    assert json.loads(inspected)[0]["RestartCount"] == 0
    with service.database.reading() as session:
        row = session.get_one(Sandbox, sandbox_id)
    for secret in (shown["session_api_key"], service.vault.decrypt(str(row.boot_key))):
        assert secret not in inspected
        assert secret not in service.log()


def assert_told(service: Deployment, anybody: Client) -> None:
    """One start from a pool that was filled with two members and refilled with a third: by two processes."""
    assert anybody.get("/metrics").status_code == 401
    key = service.make_metrics_key()
    refills = ("agent_workspace_warm_pool_refill_seconds_count", TINY_IMAGE)

    def tell() -> dict[tuple[str, ...], float]:
        return read_metrics(anybody.get("/metrics", headers={"Authorization": f"Bearer {key}"}).text)

    # A refill is counted after its commit, so somebody may see the member first.
    eventually(lambda: tell().get(refills) == 3)
    told = tell()
    starts = {source: told["agent_workspace_sandbox_starts_total", source, TINY_IMAGE] for source in ("pool", "boot")}
    assert starts == {"pool": 1, "boot": 0}
    assert 0 < told["agent_workspace_warm_pool_refill_seconds_sum", TINY_IMAGE] < 300
    assert told["agent_workspace_warm_pool_members", TINY_IMAGE, "ready"] == 2


def test_claimed_sandbox_lives_as_others_do(service: Deployment, alice: Client, engine: PrivateEngine) -> None:
    await_pool(service)
    sandbox_id = alice.start_sandbox()
    first = alice.await_sandbox(sandbox_id, "RUNNING")
    assert alice.post(f"/api/v1/sandboxes/{sandbox_id}/pause", params={"kind": "stopped"}).status_code == 200
    alice.await_sandbox(sandbox_id, "PAUSED")
    assert alice.post(f"/api/v1/sandboxes/{sandbox_id}/resume").status_code == 200
    assert alice.await_sandbox(sandbox_id, "RUNNING")["session_api_key"] == first["session_api_key"]
    # An operator's restart boots it as it was made: for nobody. It is told again whose it is.
    engine.docker("restart", "--time", "0", f"aw-{sandbox_id}")
    eventually(lambda: (alice.sandbox(sandbox_id) or {})["status"] == "RUNNING")
    assert alice.delete(f"/api/v1/sandboxes/{sandbox_id}").status_code == 200
    eventually(lambda: f"aw-{sandbox_id}" not in engine.containers())


def test_members_of_a_changed_spec_go_and_new_ones_come(service: Deployment, engine: PrivateEngine) -> None:
    pool = await_pool(service)
    change(service, memory_bytes=256 * 1024**2)
    eventually(lambda: not pool & set(members(service)))
    await_pool(service)
    eventually(lambda: len(engine.containers()) == 2)
    [first, *_] = engine.containers()
    assert json.loads(engine.docker("inspect", first))[0]["HostConfig"]["Memory"] == 256 * 1024**2


def test_members_of_a_changed_image_go_and_new_ones_come(service: Deployment, engine: PrivateEngine) -> None:
    change(service, warm_target=0, warm_most=0)
    await_no_pool(service)
    engine.docker("tag", TINY_IMAGE, OWN_IMAGE)
    service.add_spec(OWN_IMAGE, {})
    change(service, OWN_IMAGE, **POOL)
    pool = await_pool(service)
    engine.docker("commit", f"aw-{min(pool)}", OWN_IMAGE)
    eventually(lambda: not pool & set(members(service)))
    await_pool(service)


def test_pool_follows_its_target(service: Deployment, engine: PrivateEngine) -> None:
    await_pool(service)
    change(service, warm_target=1, warm_most=1)
    await_pool(service, 1)
    change(service, warm_target=0, warm_most=0)
    await_no_pool(service)
    eventually(lambda: engine.containers() == [])


def test_member_that_failed_is_replaced(service: Deployment, engine: PrivateEngine) -> None:
    pool = await_pool(service)
    dead = pool.pop()
    engine.docker("kill", f"aw-{dead}")
    eventually(lambda: dead not in members(service))
    await_pool(service)
    eventually(lambda: f"aw-{dead}" not in engine.containers())


def test_claim_of_a_member_that_died_unseen_boots_anew(
    service: Deployment, alice: Client, engine: PrivateEngine
) -> None:
    pool = await_pool(service)
    service.freeze_between_writes("worker")
    for member in pool:
        engine.docker("kill", f"aw-{member}")
    sandbox_id = alice.start_sandbox()
    assert sandbox_id in pool
    service.wake("worker")
    alice.await_sandbox(sandbox_id, "RUNNING")


def test_worker_that_dies_after_a_claim_is_followed_by_one_that_goes_on(service: Deployment, alice: Client) -> None:
    pool = await_pool(service)
    service.kill("worker")
    started = [alice.start_sandbox() for _ in range(3)]
    assert set(started) & pool == pool
    service.start_worker()
    for sandbox_id in started:
        alice.await_sandbox(sandbox_id, "RUNNING")


@pytest.mark.nightly  # for a change, `test_deferred_init` shows the real one, and others here a small one
def test_real_agent_server_waits_and_converses(
    installed: Deployment, model: ScriptedModel, engine: PrivateEngine
) -> None:
    """A conversation in a sandbox that was booted for nobody, stopped, and booted again for its owner."""
    installed.prepare(SANDBOX_IMAGE)
    change(installed, SANDBOX_IMAGE, warm_target=1, warm_most=1)
    installed.start()
    [member] = await_pool(installed, 1)
    with installed.user("alice") as alice:
        settings = {"llm_model": "openai/greeter", "llm_base_url": model.url, "llm_api_key": MODEL_KEY}
        assert alice.post("/api/settings", json=settings).status_code == 200
        task_id = alice.start_conversation()
        change(installed, SANDBOX_IMAGE, warm_target=0, warm_most=0)
        task = alice.await_start(task_id)
        assert task["sandbox_id"] == member
        inspected = engine.docker("inspect", f"aw-{member}")
        assert (alice.sandbox(member) or {})["session_api_key"] not in inspected
        assert alice.post(f"/api/v1/sandboxes/{member}/pause", params={"kind": "stopped"}).status_code == 200
        alice.await_sandbox(member, "PAUSED")
        again = alice.await_start(alice.start_conversation(sandbox_id=member))
        assert again["sandbox_id"] == member


def test_specs_that_can_not_wait_start_cold(installed: Deployment) -> None:
    installed.prepare(TINY_IMAGE)
    with installed.database.transaction() as session:
        session.get_one(SandboxSpec, TINY_IMAGE).env = {"TINY_EAGER": "1"}
    change(installed, **POOL)
    installed.start()

    def told() -> str:
        with installed.database.reading() as session:
            return session.get_one(SandboxSpec, TINY_IMAGE).warm_detail or ""

    eventually(lambda: told().startswith("not_dormant"))
    with installed.user("alice") as alice:
        alice.await_sandbox(alice.start_sandbox(), "RUNNING")

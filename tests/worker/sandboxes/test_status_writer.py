"""The writes at the end of a run."""

import pytest
from prometheus_client import generate_latest

from shared.clock import after, now
from shared.crypto import new_api_key
from shared.models import Sandbox
from shared.observability import metrics
from shared.queue.jobs import Job
from shared.sandboxes import desired_state
from shared.states import Desired, Status
from shared.users import settings_store
from tests.factories import ApiUser
from tests.fakes.container import printed
from tests.fakes.engine import IMAGE, FakeEngine
from tests.services.metrics import read_metrics
from tests.worker.scenarios import another, change, row, set_desired, start, warm
from worker.context import WorkerContext
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile


def test_failure_s_log_lines_hold_no_key_of_the_sandbox(
    context: WorkerContext, engine: FakeEngine, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    init_key = new_api_key()
    sandbox_id = start(context, user)
    with context.database.transaction() as session:
        sandbox = session.get_one(Sandbox, sandbox_id)
        sandbox.boot_key = context.vault.encrypt(init_key)
        session_key = context.vault.decrypt(sandbox.session_key)
    monkeypatch.setattr(engine, "read_log", lambda _name: printed(f"with {init_key} and {session_key}, it ends"))
    engine.at_boot = 3
    reconcile(context, sandbox_id)
    failed = row(context, Sandbox, sandbox_id)
    assert failed.status == Status.ERROR
    assert str(failed.detail).endswith("with ****** and ******, it ends")


def test_failure_s_log_lines_hold_no_secret_of_its_owner(
    context: WorkerContext, engine: FakeEngine, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    with context.database.transaction() as session:
        settings_store.change(session, context.vault, user.id, {"llm_api_key": "plain-key"})
    sandbox_id = start(context, user)
    monkeypatch.setattr(engine, "read_log", lambda _name: printed("401 incorrect API key: plain-key"))
    engine.at_boot = 3
    reconcile(context, sandbox_id)
    assert str(row(context, Sandbox, sandbox_id).detail).endswith("401 incorrect API key: ******")


def test_late_cleanup_keeps_the_container_of_the_next_worker(
    context: WorkerContext, engine: FakeEngine, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox_id = start(context, user)
    engine.at_boot = 3

    def stall(*_jobs: Job) -> None:
        """Stall the worker after its write of ERROR, until another worker has started the sandbox."""
        if row(context, Sandbox, sandbox_id).status == Status.ERROR:
            engine.at_boot = None
            change(context, Sandbox, sandbox_id, lease_until=after(-1))
            set_desired(context, sandbox_id, Desired.RUNNING)
            reconcile(another(context), sandbox_id)

    monkeypatch.setattr(context.publisher, "publish", stall)
    reconcile(context, sandbox_id)
    assert row(context, Sandbox, sandbox_id).status == Status.RUNNING
    assert list(engine.containers) == list(engine.volumes) == [container_name(sandbox_id)]


REFILL = "agent_workspace_warm_pool_refill_seconds"


def refills(context: WorkerContext) -> tuple[float, float]:
    """The number of warm sandboxes that became ready, and of those within ten seconds."""
    values = read_metrics(generate_latest(metrics.collector(context.shared)).decode())
    return values.get((f"{REFILL}_count", IMAGE), 0), values.get((f"{REFILL}_bucket", "10.0", IMAGE), 0)


def test_refill_is_counted_when_a_warm_sandbox_is_first_ready(context: WorkerContext, user: ApiUser) -> None:
    count, quick = refills(context)
    slow = warm(context, 20)
    for sandbox_id in (warm(context, 0), slow, start(context, user)):
        reconcile(context, sandbox_id)
        assert row(context, Sandbox, sandbox_id).status == Status.RUNNING
    assert refills(context) == (count + 2, quick + 1)
    # Later changes are no refills.
    for desired in (Desired.STOPPED, Desired.RUNNING):
        with context.database.transaction() as session:
            desired_state.set_desired(session, session.get_one(Sandbox, slow), desired, due_at=now())
        reconcile(context, slow)
        assert row(context, Sandbox, slow).observed_generation > 1
    assert row(context, Sandbox, slow).status == Status.RUNNING
    assert refills(context) == (count + 2, quick + 1)


def test_warm_sandbox_that_fails_is_no_refill(context: WorkerContext, engine: FakeEngine) -> None:
    before = refills(context)
    engine.at_boot = 3
    sandbox_id = warm(context, 0)
    reconcile(context, sandbox_id)
    assert row(context, Sandbox, sandbox_id).status == Status.ERROR
    assert refills(context) == before

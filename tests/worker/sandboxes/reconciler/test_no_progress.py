"""Actions that succeed without an effect: a start ends in ERROR, and a delete is explained and retried."""

from collections.abc import Callable

import httpx
import pytest

from shared.states import Desired, Reason, Status
from tests.factories import ApiUser
from tests.fakes.engine import FakeEngine
from tests.worker.sandboxes.reconciler.sandboxes import (
    assert_reconciled,
    row,
    running,
    set_desired,
    start,
)
from tests.worker.scenarios import claim, server_of, warm
from worker.context import WorkerContext
from worker.engine.protocol import ACT_SECONDS, ContainerRequest, ContainerState
from worker.sandboxes import actions
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile


class ForgetfulEngine(FakeEngine):
    """Engine that accepts requests for containers and creates none."""

    def create(self, request: ContainerRequest, seconds: int = ACT_SECONDS) -> None:
        self._enter("create", request.name)


def reconcile_often(context: WorkerContext, sandbox_id: str) -> None:
    for _ in range(context.settings.max_attempts):
        reconcile(context, sandbox_id)


def test_claimed_sandbox_whose_server_stays_dormant_fails(
    context: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    sandbox_id = warm(context)
    reconcile(context, sandbox_id)
    server_of(engine, sandbox_id).refuse["initialize"] = httpx.Response(400, json={"detail": "not now"})
    assert claim(context, user) == sandbox_id
    reconcile_often(context, sandbox_id)
    found = row(context, sandbox_id)
    assert (found.status, found.reason) == (Status.ERROR, Reason.INITIALIZE_FAILED)
    assert "initialize has no effect" in (found.detail or "")
    assert_reconciled(context, sandbox_id)


def test_delete_shows_a_remaining_volume_until_it_is_removed(
    context: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    sandbox_id = running(context, user)
    engine.shared_volumes.add(container_name(sandbox_id))
    set_desired(context, sandbox_id, Desired.DELETED)
    reconcile_often(context, sandbox_id)
    reconcile(context, sandbox_id)
    found = row(context, sandbox_id)
    assert (found.status, found.reason) == (Status.DELETING, Reason.ENGINE_ERROR)
    assert found.detail == "remove is retried: remove has no effect: the container is absent, and its volume is there"
    assert found.due_at is not None
    engine.shared_volumes.clear()
    reconcile(context, sandbox_id)
    assert row(context, sandbox_id).status == Status.DELETED
    assert_reconciled(context, sandbox_id)


class TestEngineThatCreatesNothing:
    @pytest.fixture
    def engine(self) -> ForgetfulEngine:
        return ForgetfulEngine()

    def test_start_without_progress_fails(self, context: WorkerContext, user: ApiUser) -> None:
        sandbox_id = start(context, user)
        reconcile_often(context, sandbox_id)
        found = row(context, sandbox_id)
        assert (found.status, found.reason) == (Status.ERROR, Reason.CREATE_FAILED)
        assert found.detail == "create has no effect: the container is absent"
        assert_reconciled(context, sandbox_id)

    def test_start_without_progress_is_rescheduled(
        self, context: WorkerContext, other_worker: WorkerContext, user: ApiUser
    ) -> None:
        sandbox_id = start(context, user)
        nodes = {context.settings.node: context, other_worker.settings.node: other_worker}
        first = row(context, sandbox_id).node_id
        reconcile(nodes.pop(str(first)), sandbox_id)
        assert row(context, sandbox_id).node_id in nodes


def test_removal_that_does_not_end_is_explained(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "REMOVAL_SECONDS", 0)
    sandbox_id = running(context, user)
    engine.containers[container_name(sandbox_id)].state = ContainerState.REMOVING
    set_desired(context, sandbox_id, Desired.DELETED)
    engine.before["observe"] = limited(1000)
    reconcile(context, sandbox_id)
    found = row(context, sandbox_id)
    assert (found.status, found.reason) == (Status.RUNNING, Reason.ENGINE_ERROR)
    assert "still removing" in (found.detail or "")
    assert found.due_at is not None
    del engine.containers[container_name(sandbox_id)]
    reconcile(context, sandbox_id)
    assert row(context, sandbox_id).status == Status.DELETED


def limited(most: int) -> Callable[[str], None]:
    """A function that fails the test when it is called more often."""
    calls = iter(range(most))

    def call(_name: str) -> None:
        assert next(calls, None) is not None, "the run does not end"

    return call

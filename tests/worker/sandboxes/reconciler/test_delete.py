"""A delete, from any state."""

import pytest

from shared.errors import NotFound
from shared.states import Desired, Status
from tests.factories import ApiUser
from tests.fakes.engine import FakeEngine
from tests.worker.sandboxes.reconciler.sandboxes import assert_reconciled, history, row, running, set_desired
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.failed_stops import MAX_STOP_ATTEMPTS
from worker.sandboxes.reconciler import reconcile


class TestDelete:
    @pytest.mark.parametrize("state", list(ContainerState))
    def test_delete_from_any_state_of_the_container(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine, state: ContainerState
    ) -> None:
        sandbox_id = running(context, user)
        name = container_name(sandbox_id)
        engine.containers[name].state = state
        if state in (ContainerState.ABSENT, ContainerState.REMOVING):
            del engine.containers[name]
        set_desired(context, sandbox_id, Desired.DELETED)
        reconcile(context, sandbox_id)
        assert row(context, sandbox_id).status == Status.DELETED
        assert (engine.containers, engine.volumes) == ({}, {})
        assert history(context, sandbox_id)[-2:] == ["DELETING", "DELETED"]
        assert_reconciled(context, sandbox_id)

    def test_delete_is_not_shown_before_the_engine_confirms(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        sandbox_id = running(context, user)
        set_desired(context, sandbox_id, Desired.DELETED)
        engine.refuse = {"remove": 50}
        for _ in range(context.settings.max_attempts + 2):
            reconcile(context, sandbox_id)
        assert row(context, sandbox_id).status == Status.DELETING
        engine.refuse = {}
        reconcile(context, sandbox_id)
        assert row(context, sandbox_id).status == Status.DELETED

    @pytest.mark.parametrize("verb", ["unpause", "stop"])
    @pytest.mark.parametrize("response", ["refuse", "fail"])
    def test_delete_needs_no_stop(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine, verb: str, response: str
    ) -> None:
        sandbox_id = running(context, user)
        set_desired(context, sandbox_id, Desired.DELETED)
        setattr(engine, response, {verb: 50})
        reconcile(context, sandbox_id)
        assert container_name(sandbox_id) in engine.containers, "the next attempt may stop it"
        for _ in range(MAX_STOP_ATTEMPTS):
            reconcile(context, sandbox_id)
        assert row(context, sandbox_id).status == Status.DELETED
        assert (engine.containers, engine.volumes) == ({}, {})

    def test_delete_is_final(self, context: WorkerContext, user: ApiUser) -> None:
        sandbox_id = running(context, user)
        set_desired(context, sandbox_id, Desired.DELETED)
        with pytest.raises(NotFound):
            set_desired(context, sandbox_id, Desired.RUNNING)

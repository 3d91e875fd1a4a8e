"""The idle deadline deletes stopped sandboxes, unless the container shows that the sandbox was used."""

from datetime import timedelta
from typing import Any

import pytest

from shared.clock import now
from shared.models import Sandbox
from shared.states import DeadlineAction, Desired, PauseKind, Reason, Status
from tests.factories import ApiUser
from tests.fakes.engine import FakeEngine
from tests.worker.scenarios import change, deliver, row, running
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState
from worker.loops.deadlines import apply_deadlines
from worker.loops.resync import resync
from worker.sandboxes.container_spec import container_name

FROZEN, EXITED = ContainerState.PAUSED, ContainerState.EXITED


def pass_idle_deadline(context: WorkerContext, sandbox_id: str, **columns: Any) -> None:
    past = {"status_changed_at": now() - timedelta(days=2), "last_active_at": now() - timedelta(days=2)}
    passed = {"deadline_at": now() - timedelta(days=1), "deadline_does": DeadlineAction.DELETE}
    change(context, Sandbox, sandbox_id, **past, **passed, **columns)
    apply_deadlines(context)
    deliver(context)


@pytest.mark.parametrize("state", [FROZEN, EXITED])
def test_idle_deadline_deletes_no_sandbox_that_was_used_since(
    context: WorkerContext, engine: FakeEngine, user: ApiUser, state: ContainerState
) -> None:
    """The engine shows that the sandbox was resumed after the backup, in which it had been stopped for long."""
    sandbox_id = running(context, user)
    name = container_name(sandbox_id)
    stopped = {"status": Status.PAUSED, "pause_kind": PauseKind.STOPPED, "desired": Desired.STOPPED}
    if state == EXITED:
        engine.stop(name, 1)
    pass_idle_deadline(context, sandbox_id, **stopped)
    resync(context)
    expected = {FROZEN: ([name], Reason.ALREADY_USED), EXITED: ([], Reason.IDLE_DELETED)}
    assert (list(engine.volumes), row(context, Sandbox, sandbox_id).reason) == expected[state]
    assert [found.state for found in engine.containers.values()] == [FROZEN] * len(engine.volumes)


def test_idle_deadline_deletes_the_running_container_of_a_lost_node(
    context: WorkerContext, engine: FakeEngine, user: ApiUser
) -> None:
    """The sandbox was never stopped: its node was lost, and is back after the deadline."""
    sandbox_id = running(context, user)
    pass_idle_deadline(context, sandbox_id, status=Status.ERROR, reason=Reason.NODE_LOST)
    resync(context)
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.reason, engine.containers) == (Status.DELETED, Reason.IDLE_DELETED, {})


def test_idle_deadline_deletes_a_failed_sandbox_whose_container_is_paused(
    context: WorkerContext, engine: FakeEngine, user: ApiUser
) -> None:
    """A paused container, unlike a running one, is no sign that the sandbox was used since it failed."""
    sandbox_id = running(context, user)
    engine.pause(container_name(sandbox_id))
    pass_idle_deadline(context, sandbox_id, status=Status.ERROR, reason=Reason.HEALTH_TIMEOUT)
    resync(context)
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.reason, engine.containers) == (Status.DELETED, Reason.IDLE_DELETED, {})
    assert engine.volumes == {}

"""Probes of warm sandboxes, whose agent servers await their init request: their other routes are a 503."""

import pytest

from shared.models import Sandbox
from shared.states import Reason, Status
from tests.fakes.engine import FakeEngine
from tests.worker.loops.probes import PROBES, probe, tolerating_probes
from tests.worker.scenarios import deliver, row, warm
from worker.context import WorkerContext
from worker.loops.health_monitor import LivenessMonitor
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile


@pytest.fixture
def context(context: WorkerContext) -> WorkerContext:
    """Context of a worker that tolerates three failed probes."""
    return tolerating_probes(context)


@pytest.fixture
def sandbox_id(context: WorkerContext) -> str:
    """A warm sandbox that is ready."""
    sandbox_id = warm(context)
    reconcile(context, sandbox_id)
    assert row(context, Sandbox, sandbox_id).status == Status.RUNNING
    return sandbox_id


def test_warm_sandbox_is_not_checked_while_its_server_responds(
    context: WorkerContext, sandbox_id: str, monitor: LivenessMonitor
) -> None:
    """It could not be claimed during a check."""
    before = row(context, Sandbox, sandbox_id).model_dump()
    probe(monitor, 2 * PROBES)
    assert row(context, Sandbox, sandbox_id).model_dump() == before


def test_warm_sandbox_survives_a_lost_response(
    context: WorkerContext, engine: FakeEngine, sandbox_id: str, monitor: LivenessMonitor
) -> None:
    probe(monitor, PROBES)
    engine.silent = {container_name(sandbox_id)}
    probe(monitor, PROBES - 1)
    assert row(context, Sandbox, sandbox_id).status == Status.RUNNING


def test_silent_warm_sandbox_becomes_an_error(
    context: WorkerContext, engine: FakeEngine, sandbox_id: str, monitor: LivenessMonitor
) -> None:
    engine.silent = {container_name(sandbox_id)}
    probe(monitor, PROBES)
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.reason) == (Status.ERROR, Reason.HEALTH_TIMEOUT)


def test_warm_sandbox_whose_server_awaits_no_init_becomes_an_error(
    context: WorkerContext, engine: FakeEngine, sandbox_id: str, monitor: LivenessMonitor
) -> None:
    engine.servers[container_name(sandbox_id)].is_dormant = False
    probe(monitor)
    deliver(context)
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.reason) == (Status.ERROR, Reason.NOT_DORMANT)

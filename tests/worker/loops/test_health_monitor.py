"""RUNNING means that the agent server responds: an unresponsive one is reported, and no other sandbox is affected."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from shared.clock import after
from shared.models import Sandbox
from shared.states import Desired, PauseKind, Reason, Status
from tests.doubles import ImmediateExecutor
from tests.factories import ApiUser, make_node, make_sandbox
from tests.fakes.engine import IMAGE, FakeEngine
from tests.waiting import eventually
from tests.worker.loops.probes import PROBES, probe, tolerating_probes
from tests.worker.scenarios import assert_at_rest, change, deliver, row, running, set_desired
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState
from worker.loops.health_monitor import LivenessMonitor, open_monitor
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile

# The number of unresponsive servers, which must not delay the probe of another one.
STUCK = 40


def close(monitor: LivenessMonitor) -> None:
    """Close the monitor, and wait for the checks that have begun: they use the test's database."""
    monitor.close()
    for executor in (monitor._probes, monitor._checks):
        executor.shutdown()


@pytest.fixture
def context(context: WorkerContext) -> WorkerContext:
    """Context of a worker that tolerates three failed probes."""
    return tolerating_probes(context)


def test_unresponsive_server_becomes_an_error(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, monitor: LivenessMonitor
) -> None:
    silent, healthy = running(context, user), running(context, user)
    engine.silent = {container_name(silent)}
    probe(monitor, PROBES - 1)
    assert row(context, Sandbox, silent).status == Status.RUNNING
    probe(monitor)
    found = row(context, Sandbox, silent)
    assert (found.status, found.reason) == (Status.ERROR, Reason.HEALTH_TIMEOUT)
    assert "no response from the agent server in 120 s" in (found.detail or "")
    assert "the last line" in (found.detail or "")
    assert_at_rest(found)
    assert engine.containers[container_name(silent)].state == ContainerState.EXITED
    assert container_name(silent) in engine.volumes
    assert row(context, Sandbox, healthy).status == Status.RUNNING
    engine.silent.clear()
    set_desired(context, silent, Desired.RUNNING)
    reconcile(context, silent)
    assert row(context, Sandbox, silent).status == Status.RUNNING


def test_server_that_responds_sometimes_keeps_running(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, monitor: LivenessMonitor
) -> None:
    sandbox_id = running(context, user)
    for _ in range(3):
        engine.silent = {container_name(sandbox_id)}
        probe(monitor, PROBES - 1)
        engine.silent.clear()
        probe(monitor)
    assert row(context, Sandbox, sandbox_id).status == Status.RUNNING


def test_single_failed_probe_is_no_failure_at_any_probe_interval(
    context: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    settings = context.settings.model_copy(update={"health_probe_seconds": 600.0})
    rare = LivenessMonitor(replace(context, settings=settings), probes=ImmediateExecutor(), checks=ImmediateExecutor())
    sandbox_id = running(context, user)
    engine.silent = {container_name(sandbox_id)}
    probe(rare)
    assert row(context, Sandbox, sandbox_id).status == Status.RUNNING
    probe(rare)
    assert row(context, Sandbox, sandbox_id).reason == Reason.HEALTH_TIMEOUT


def test_server_that_responds_at_the_last_moment_keeps_running(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, monitor: LivenessMonitor
) -> None:
    sandbox_id = running(context, user)
    engine.silent = {container_name(sandbox_id)}
    probe(monitor, PROBES - 1)
    engine.before["observe"] = lambda _name: engine.silent.clear()
    probe(monitor)
    found = row(context, Sandbox, sandbox_id)
    assert found.status == Status.RUNNING
    assert_at_rest(found)


@pytest.mark.parametrize(
    "columns", [{"due_at": after(60)}, {"lease_owner": "worker-2", "lease_until": after(60)}], ids=["due", "leased"]
)
def test_failed_probes_before_and_after_a_status_check_add_up(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, monitor: LivenessMonitor, columns: dict[str, object]
) -> None:
    sandbox_id = running(context, user)
    engine.silent = {container_name(sandbox_id)}
    probe(monitor, PROBES - 1)
    change(context, Sandbox, sandbox_id, **columns)
    probe(monitor)
    change(context, Sandbox, sandbox_id, **dict.fromkeys(columns))
    probe(monitor)
    assert row(context, Sandbox, sandbox_id).reason == Reason.HEALTH_TIMEOUT


def test_failed_probes_before_and_after_a_boot_do_not_add_up(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, monitor: LivenessMonitor
) -> None:
    sandbox_id = running(context, user)
    for _ in range(2):
        engine.silent = {container_name(sandbox_id)}
        probe(monitor, PROBES - 1)
        engine.silent.clear()
        for desired in (Desired.PAUSED, Desired.RUNNING):
            set_desired(context, sandbox_id, desired)
            reconcile(context, sandbox_id)
    assert row(context, Sandbox, sandbox_id).status == Status.RUNNING


def test_resume_of_an_unresponsive_sandbox_gets_its_full_timeout(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, monitor: LivenessMonitor
) -> None:
    """A sandbox that is resumed at the last moment gets the full timeout of a resume."""
    sandbox_id = running(context, user)
    engine.silent = {container_name(sandbox_id)}
    probe(monitor, PROBES - 1)

    def resume(_name: str) -> None:
        engine.before.clear()
        set_desired(context, sandbox_id, Desired.RUNNING)

    engine.before["observe"] = resume
    probe(monitor)
    found = row(context, Sandbox, sandbox_id)
    assert found.status == Status.RUNNING
    assert found.due_at is not None


@pytest.mark.parametrize(
    "columns",
    [
        {"status": Status.PAUSED, "pause_kind": PauseKind.FROZEN},
        {"status": Status.ERROR},
        {"node_id": "node-b"},
        {"due_at": after(60)},
        {"lease_owner": "worker-2", "lease_until": after(60)},
    ],
)
def test_sandboxes_that_do_not_run_are_not_probed(
    context: WorkerContext, user: ApiUser, monitor: LivenessMonitor, engine: FakeEngine, columns: dict[str, object]
) -> None:
    make_node(context.database, "node-b")
    requested: list[str] = []
    sandbox_id = running(context, user)
    engine.requested = requested.append
    probe(monitor)
    assert len(requested) == 1
    change(context, Sandbox, sandbox_id, **columns)
    probe(monitor, PROBES)
    assert len(requested) == 1


def test_wrong_server_at_the_address_is_reported_immediately(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, monitor: LivenessMonitor
) -> None:
    sandbox_id = running(context, user)
    engine.containers[container_name(sandbox_id)].files = {"/": b'{"session_api_keys": ["another"]}'}
    probe(monitor)
    deliver(context)
    assert row(context, Sandbox, sandbox_id).reason == Reason.WRONG_SERVER


def test_row_that_can_not_be_probed_does_not_affect_others(
    context: WorkerContext, user: ApiUser, monitor: LivenessMonitor
) -> None:
    defective = make_sandbox(context.database, user, spec_id=IMAGE, id="a" + "0" * 31, session_key="damaged")
    gone = make_sandbox(context.database, user, spec_id=IMAGE, id="a" + "1" * 31)
    probe(monitor, PROBES)
    assert row(context, Sandbox, defective.id).status == Status.RUNNING
    assert row(context, Sandbox, gone.id).reason == Reason.CONTAINER_MISSING


def test_slow_servers_delay_no_other_probe(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    """A server gets no second probe while the first is pending, and no probe waits for another one."""
    held, requested = threading.Event(), Counter[str]()
    healthy, *stuck = (container_name(running(context, user)) for _ in range(1 + STUCK))

    def hold(name: str) -> None:
        requested[name] += 1
        if name in stuck:
            held.wait(30)

    engine.requested = hold
    monitor = open_monitor(context)
    try:
        for intervals in range(1, 4):
            probe(monitor)
            eventually(lambda: requested[healthy] >= intervals)  # noqa: B023 - called immediately
        assert [requested[name] for name in stuck] == [1] * STUCK
    finally:
        held.set()
        close(monitor)


def test_stalled_engine_delays_no_probe(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    """The check of an unresponsive server needs the engine: it runs in another thread, one per sandbox."""
    held, observed, requested = threading.Event(), Counter[str](), Counter[str]()
    silent, healthy = (container_name(running(context, user)) for _ in range(2))

    def hold(name: str) -> None:
        observed[name] += 1
        held.wait(30)

    def count(name: str) -> None:
        requested[name] += 1

    engine.silent, engine.requested, engine.before["observe"] = {silent}, count, hold
    monitor = open_monitor(context)
    try:
        for intervals in range(1, PROBES + 3):
            probe(monitor)
            eventually(lambda: requested[healthy] >= intervals)  # noqa: B023 - called immediately
        eventually(lambda: observed[silent])
        assert observed == {silent: 1}
    finally:
        held.set()
        close(monitor)


def test_probes_that_wait_for_a_thread_end_with_the_monitor(
    context: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    held, requested = threading.Event(), Counter[str]()
    names = [container_name(running(context, user)) for _ in range(2)]

    def hold(name: str) -> None:
        requested[name] += 1
        held.wait(30)

    engine.requested = hold
    probes, checks = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
    monitor = LivenessMonitor(context, probes=probes, checks=checks)
    try:
        probe(monitor)
        eventually(lambda: requested)
    finally:
        monitor.close()
        held.set()
    probes.shutdown()
    assert requested.total() == 1 < len(names)
    with pytest.raises(RuntimeError, match="shutdown"):
        checks.submit(monitor.close)

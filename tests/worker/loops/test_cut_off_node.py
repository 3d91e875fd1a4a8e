"""If no address of a node's sandboxes responds, the node has failed, and not its sandboxes (decision 79)."""

from dataclasses import replace

import pytest

from shared.models import Node, Sandbox
from shared.states import Reason, Status
from tests.factories import NODE_ID, ApiUser, make_conversation
from tests.fakes.engine import FakeEngine
from tests.worker.loops.probes import PROBES, probe, tolerating_probes
from tests.worker.scenarios import assert_at_rest, deliver, row, running
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState
from worker.loops.engine_events import follow_events
from worker.loops.health_monitor import CUT_OFF, LivenessMonitor
from worker.loops.heartbeat import send_heartbeat
from worker.network.protocol import Isolation
from worker.sandboxes.container_spec import container_name


class Firewalled(Isolation):
    """A network in which some addresses don't respond, whatever runs there."""

    def __init__(self) -> None:
        self.unreachable: set[str] = set()

    def reaches(self, address: str) -> bool:
        return address not in self.unreachable


@pytest.fixture
def network() -> Firewalled:
    return Firewalled()


@pytest.fixture
def context(context: WorkerContext, network: Firewalled) -> WorkerContext:
    """Context of a worker that tolerates three failed probes."""
    return replace(tolerating_probes(context), network=network)


def silence(engine: FakeEngine, *sandbox_ids: str) -> set[str]:
    """Silence agent servers; return their addresses."""
    names = set(map(container_name, sandbox_ids))
    engine.silent |= names
    return {engine.containers[name].address for name in names}


def statuses(context: WorkerContext, *sandbox_ids: str) -> list[str]:
    return [row(context, Sandbox, sandbox_id).status for sandbox_id in sandbox_ids]


def test_no_sandbox_fails_while_all_are_unreachable(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, monitor: LivenessMonitor, network: Firewalled
) -> None:
    found = [running(context, user), running(context, user)]
    network.unreachable = silence(engine, *found)
    probe(monitor, 3 * PROBES)
    assert statuses(context, *found) == [Status.RUNNING, Status.RUNNING]
    assert {engine.containers[container_name(each)].state for each in found} == {ContainerState.RUNNING}
    send_heartbeat(replace(context, impairment_checks=[monitor.find_cut_off]))
    assert row(context, Node, NODE_ID).impaired_reason == CUT_OFF
    network.unreachable.clear()
    probe(monitor, PROBES - 1)
    assert statuses(context, *found) == [Status.RUNNING, Status.RUNNING]
    send_heartbeat(replace(context, impairment_checks=[monitor.find_cut_off]))
    assert row(context, Node, NODE_ID).impaired_reason is None
    probe(monitor)
    assert {row(context, Sandbox, each).reason for each in found} == {Reason.HEALTH_TIMEOUT}


def test_silent_server_is_detected_among_other_silent_servers(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, monitor: LivenessMonitor, network: Firewalled
) -> None:
    found, hostile = running(context, user), [running(context, user), running(context, user)]
    network.unreachable = silence(engine, *hostile)  # as a sandbox with the right to drop packets may be
    silence(engine, found)
    probe(monitor, PROBES)
    assert statuses(context, found) == [Status.ERROR]


def test_single_unreachable_sandbox_fails(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, monitor: LivenessMonitor, network: Firewalled
) -> None:
    found, healthy = running(context, user), running(context, user)
    probe(monitor)
    network.unreachable = silence(engine, found)
    probe(monitor, PROBES)
    assert statuses(context, found, healthy) == [Status.ERROR, Status.RUNNING]
    assert monitor.find_cut_off() is None


def test_status_check_ends_no_unreachable_sandbox(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, network: Firewalled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream without events ends after a minute; then each sandbox in which an agent runs is checked."""
    settings = context.settings.model_copy(update={"health_timeout": 0.2})
    found = running(context, user)
    make_conversation(context.database, user, row(context, Sandbox, found), execution_status="running")
    network.unreachable = silence(engine, found)
    monkeypatch.setattr(engine, "follow", lambda _installation: iter(()))
    follow_events(replace(context, settings=settings))
    deliver(replace(context, settings=settings))
    assert statuses(context, found) == [Status.RUNNING]
    assert engine.containers[container_name(found)].state == ContainerState.RUNNING
    assert_at_rest(row(context, Sandbox, found))

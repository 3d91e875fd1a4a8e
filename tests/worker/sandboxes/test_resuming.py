"""A resume probes the agent server before the engine has unpaused its container, so that the response comes early."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import pytest

from shared.models import Sandbox
from shared.states import Desired, Status
from tests.factories import ApiUser
from tests.fakes.engine import FakeEngine
from tests.waiting import eventually
from tests.worker.scenarios import row, running, set_desired
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile


class PausedServers:
    """The agent servers of an engine in memory: they accept requests while paused, and respond when unpaused."""

    def __init__(self, engine: FakeEngine, name: str) -> None:
        self.engine, self.name = engine, name
        self.states: list[ContainerState] = []

    def respond(self, request: httpx.Request) -> httpx.Response:
        self.states.append(self.state)
        eventually(lambda: self.state == ContainerState.RUNNING)
        return self.engine.respond(request)

    def await_probe(self, _name: str) -> None:
        eventually(lambda: bool(self.states))

    @property
    def state(self) -> ContainerState:
        return self.engine.containers[self.name].state


@pytest.fixture
def sandbox_id(context: WorkerContext, user: ApiUser) -> str:
    """A paused sandbox with the desired state RUNNING."""
    sandbox_id = running(context, user)
    for desired in (Desired.PAUSED, Desired.RUNNING):
        set_desired(context, sandbox_id, desired)
        if desired == Desired.PAUSED:
            reconcile(context, sandbox_id)
    return sandbox_id


@pytest.fixture
def server(engine: FakeEngine, sandbox_id: str) -> PausedServers:
    """The sandbox's agent server; it gets a probe before it is unpaused."""
    server = PausedServers(engine, container_name(sandbox_id))
    engine.before["unpause"] = server.await_probe
    return server


@pytest.fixture
def http_context(context: WorkerContext, server: PausedServers) -> Iterator[WorkerContext]:
    """The worker, with threads for probes."""
    with httpx.Client(transport=httpx.MockTransport(server.respond)) as http, ThreadPoolExecutor() as probes:
        yield replace(context, http=http, probes=probes)


def test_resume_needs_one_probe_and_one_observation(
    http_context: WorkerContext, engine: FakeEngine, server: PausedServers, sandbox_id: str
) -> None:
    engine.calls.clear()
    reconcile(http_context, sandbox_id)
    assert row(http_context, Sandbox, sandbox_id).status == Status.RUNNING
    assert server.states == [ContainerState.PAUSED]
    assert engine.calls == [("observe", server.name), ("unpause", server.name)]


def test_server_that_stops_responding_fails_the_resume(
    http_context: WorkerContext, engine: FakeEngine, server: PausedServers, sandbox_id: str
) -> None:
    engine.silent.add(server.name)
    reconcile(http_context, sandbox_id)
    found = row(http_context, Sandbox, sandbox_id)
    assert (found.status, found.reason) == (Status.ERROR, "health_timeout")
    assert engine.calls.count(("observe", server.name)) > 2


def test_resume_survives_one_response_of_another_server(
    http_context: WorkerContext, engine: FakeEngine, server: PausedServers, sandbox_id: str
) -> None:
    engine.impostors[server.name] = 1
    reconcile(http_context, sandbox_id)
    assert row(http_context, Sandbox, sandbox_id).status == Status.RUNNING
    assert server.states == [ContainerState.PAUSED, ContainerState.RUNNING]


def test_resume_that_the_engine_refuses_is_retried(
    http_context: WorkerContext, engine: FakeEngine, sandbox_id: str
) -> None:
    # The pending probe is not awaited, and does not count for the retry.
    engine.refuse["unpause"] = 1
    reconcile(http_context, sandbox_id)
    assert row(http_context, Sandbox, sandbox_id).status == Status.PAUSED
    engine.before.clear()
    reconcile(http_context, sandbox_id)
    assert row(http_context, Sandbox, sandbox_id).status == Status.RUNNING


def test_resume_without_a_free_thread_probes_in_its_own(
    context: WorkerContext, engine: FakeEngine, sandbox_id: str
) -> None:
    requested: list[str] = []
    engine.requested = requested.append
    reconcile(context, sandbox_id)
    assert row(context, Sandbox, sandbox_id).status == Status.RUNNING
    assert requested == [container_name(sandbox_id)]

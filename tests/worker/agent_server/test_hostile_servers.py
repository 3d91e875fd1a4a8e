"""A sandbox with a hostile agent server can be paused, stopped and deleted, and affects no other sandbox."""

import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest

from shared.agent_server import limits
from shared.agent_server.errors import AgentServerUnreachable, WrongServer
from shared.models import Sandbox
from shared.states import Desired, Status
from tests import effort
from tests.factories import DOOR, ApiUser, make_conversation
from tests.fakes.engine import FakeEngine
from tests.services.hostile_server import (
    MODES,
    HostileServer,
    Mode,
    answering,
    dripping,
    flooding,
    hostile,
    inflating,
    never_answering,
)
from tests.worker.scenarios import change, row, set_desired
from worker.agent_server import client as agent_server_client
from worker.agent_server import transport
from worker.agent_server.client import AgentServer
from worker.agent_server.transport import open_client
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState
from worker.loops.recheck import recheck, report_unresponsive
from worker.sandboxes import agent_server_lifecycle, container_spec
from worker.sandboxes.container_spec import container_name, sandbox_url
from worker.sandboxes.reconciler import reconcile

CONVERSATION_ID = "1" * 32
REACHED = {
    Desired.PAUSED: (Status.PAUSED, ContainerState.PAUSED),
    Desired.STOPPED: (Status.PAUSED, ContainerState.EXITED),
    Desired.DELETED: (Status.DELETED, None),
}
# The limit for sandboxes with a healthy agent server.
MAX_SECONDS = 30
MAX_GROWTH = 64 * 1024 * 1024


@pytest.fixture
def context(context: WorkerContext, monkeypatch: pytest.MonkeyPatch) -> WorkerContext:
    """Context of a worker with short timeouts for agent servers."""
    monkeypatch.setattr(agent_server_lifecycle, "INTERRUPT_SECONDS", 0.3)
    monkeypatch.setattr(agent_server_client, "PROBE_SECONDS", 0.3)
    monkeypatch.setattr(container_spec, "sandbox_url", find_url)
    return context


@pytest.fixture
def http_context(context: WorkerContext) -> Iterator[WorkerContext]:
    """The same context, with a client for servers of this machine."""
    with open_client(DOOR) as http:
        yield replace(context, http=http)


def find_url(door: str, address: str, port: int) -> str:
    """Return the URL of a hostile server, which has no door in front of it, or of a container."""
    return address if address.startswith("http:") else sandbox_url(door, address, port)


def take_over(context: WorkerContext, user: ApiUser, sandbox_id: str, server: HostileServer) -> None:
    """Replace the sandbox's agent server with a hostile one."""
    assert isinstance(context.engine, FakeEngine)
    context.engine.containers[container_name(sandbox_id)].address = server.url
    url = {"name": "AGENT_SERVER", "url": server.url, "port": 8000}
    change(context, Sandbox, sandbox_id, exposed_urls=[url])
    make_conversation(context.database, user, row(context, Sandbox, sandbox_id), id=CONVERSATION_ID)


# For each change, each hostile mode is tested with one of the three desired states, in rotation; at night, with all.
@pytest.mark.parametrize(("desired", "mode"), effort.covering(list(REACHED), list(MODES)))
def test_sandbox_reaches_its_desired_state(
    http_context: WorkerContext, user: ApiUser, engine: FakeEngine, sandbox_id: str, desired: Desired, mode: str
) -> None:
    with hostile(MODES[mode]) as server:
        take_over(http_context, user, sandbox_id, server)
        set_desired(http_context, sandbox_id, desired)
        began = time.monotonic()
        reconcile(http_context, sandbox_id)
        assert time.monotonic() - began < MAX_SECONDS
        assert server.requested
    found = row(http_context, Sandbox, sandbox_id)
    status, state = REACHED[desired]
    container = engine.containers.get(container_name(sandbox_id))
    assert (found.status, found.reason, found.attempt) == (status, None, 0)
    assert (container.state if container else None) == state


@pytest.mark.parametrize("desired", REACHED)
def test_unreadable_key_does_not_prevent_the_desired_state(
    http_context: WorkerContext, user: ApiUser, sandbox_id: str, desired: Desired
) -> None:
    with hostile(answering({})) as server:
        take_over(http_context, user, sandbox_id, server)
        change(http_context, Sandbox, sandbox_id, session_key="damaged")
        set_desired(http_context, sandbox_id, desired)
        reconcile(http_context, sandbox_id)
    assert row(http_context, Sandbox, sandbox_id).status == REACHED[desired][0]


@pytest.mark.parametrize("mode", [flooding, inflating])
def test_response_takes_no_more_memory_than_its_max_size(mode: Mode) -> None:
    with hostile(mode) as server, open_client(DOOR) as client:
        requested = AgentServer(server.url, "key", client)
        tracemalloc.start()
        try:
            requested.accepts_key()
            with pytest.raises(WrongServer, match=r"encoded|larger"):
                requested.find_running()
            with pytest.raises(WrongServer, match=r"encoded|larger"):
                list(requested.list_messages(CONVERSATION_ID))
            assert tracemalloc.get_traced_memory()[1] < MAX_GROWTH
        finally:
            tracemalloc.stop()


def test_small_document_of_many_values_is_refused() -> None:
    many = answering(b"[" + b"[]," * 300_000 + b"[]]")
    with hostile(many) as server, open_client(DOOR) as client, pytest.raises(WrongServer):
        AgentServer(server.url, "key", client).find_running()


def test_probe_reads_the_status_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_server_client, "PROBE_SECONDS", 20.0)
    with hostile(dripping) as server, open_client(DOOR) as client:
        began = time.monotonic()
        assert AgentServer(server.url, "key", client).accepts_key()
        assert time.monotonic() - began < 10


def test_timeout_is_for_the_whole_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_server_client, "UPLOAD_SECONDS", 0.5)
    with hostile(dripping) as server, open_client(DOOR) as client, ThreadPoolExecutor(1) as pool:
        requested = pool.submit(AgentServer(server.url, "key", client).upload, "/a", b"")
        assert isinstance(requested.exception(20), AgentServerUnreachable)


def test_content_follows_its_header_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long timeout is for the server's work before the header; the content must follow the header without delay."""
    monkeypatch.setattr(transport, "CONTENT_SECONDS", 0.5)
    with hostile(dripping) as server, open_client(DOOR) as client, ThreadPoolExecutor(1) as pool:
        requested = pool.submit(AgentServer(server.url, "key", client).upload, "/a", b"")
        assert isinstance(requested.exception(10), AgentServerUnreachable)


def test_number_of_pages_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits.MAX_MESSAGES == 1000
    monkeypatch.setattr(limits, "MAX_MESSAGES", 100)  # a thousand requests, one for each message, take seconds
    with hostile(MODES["endless pages"]) as server, open_client(DOOR) as client:
        assert len(AgentServer(server.url, "key", client).find_running()) == limits.MAX_RUNNING_PAGES
        assert len(list(AgentServer(server.url, "key", client).list_messages(CONVERSATION_ID))) == 100


def test_cookies_of_one_server_are_not_sent_to_another() -> None:
    with (
        hostile(answering(0, Set_Cookie="mine=" + "x" * 4000)) as server,
        hostile(answering(0)) as other,
        open_client(DOOR) as client,
    ):
        AgentServer(server.url, "key", client).accepts_key()
        AgentServer(other.url, "key", client).accepts_key()
    assert b"cookie" not in other.requested[0].lower()


def accepting_key(server: HostileServer) -> Mode:
    """Respond to requests with a key, as a healthy server does."""

    def respond(ended: threading.Event) -> Iterator[bytes]:
        return answering({}, 200 if b"X-Session-API-Key" in server.requested[-1] else 401)(ended)

    return respond


@pytest.mark.parametrize("mode", [never_answering, dripping, answering({}, 401)])
def test_status_check_ends_soon(
    http_context: WorkerContext, user: ApiUser, sandbox_id: str, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """A newer desired state waits for the end of the check, which has a lease on the row."""
    monkeypatch.setattr("worker.sandboxes.actions.CHECK_SECONDS", 0.3)
    monkeypatch.setattr(agent_server_client, "PROBE_SECONDS", 60.0)
    with hostile(mode) as server:
        take_over(http_context, user, sandbox_id, server)
        recheck(http_context, sandbox_id)
        began = time.monotonic()
        http_context.status_checks.run()  # type: ignore[attr-defined]
        assert time.monotonic() - began < 20
    assert row(http_context, Sandbox, sandbox_id).lease_until is None


def test_last_probe_of_a_silent_server_is_sent_despite_a_slow_engine(
    http_context: WorkerContext, user: ApiUser, engine: FakeEngine, sandbox_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(late))
    monkeypatch.setattr(transport, "time", clock)
    engine.before["observe"] = lambda _name: late.append(60.0)
    with hostile(answering({})) as server:
        take_over(http_context, user, sandbox_id, server)
        server.mode = accepting_key(server)
        report_unresponsive(http_context, sandbox_id, http_context.settings.health_timeout)
        assert server.requested
    found = row(http_context, Sandbox, sandbox_id)
    assert (found.status, found.reason, len(late)) == (Status.RUNNING, None, 1)


@pytest.mark.parametrize("desired", REACHED)
def test_newer_desired_state_does_not_wait_for_a_wrong_server(
    http_context: WorkerContext, user: ApiUser, sandbox_id: str, desired: Desired
) -> None:
    """Each of the server's responses can be late: the newer desired state is reconciled after the first one."""
    with hostile(answering({}, 401)) as server:
        take_over(http_context, user, sandbox_id, server)
        set_desired(http_context, sandbox_id, Desired.RUNNING)
        refuse = server.mode

        def overtake(ended: threading.Event) -> Iterator[bytes]:
            server.mode = refuse
            set_desired(http_context, sandbox_id, desired)
            return refuse(ended)

        server.mode = overtake
        reconcile(http_context, sandbox_id)
    found = row(http_context, Sandbox, sandbox_id)
    assert (found.status, found.reason) == (REACHED[desired][0], None)

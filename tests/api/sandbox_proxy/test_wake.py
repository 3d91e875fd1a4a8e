"""Requests to sandboxes that do not run: they wait for one resume, and are served or get the reason."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from api.realtime.completion_waiter import CompletionWaiter
from shared.clock import now
from shared.db.database import Database
from shared.models import Sandbox, SandboxSpec
from shared.queue.jobs import PauseSandbox
from shared.sandboxes import desired_state
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes.status import ObservedState
from shared.settings import QuotaPolicy
from shared.states import Desired, PauseKind, Reason, Status
from tests.api.sandbox_proxy.doubles import Agent, Serve, Worker, key_of
from tests.factories import SPEC_ID, ApiUser, make_sandbox, session_key_of
from tests.fakes.worker import settle
from tests.rows import as_stored
from tests.waiting import eventually

# More than the threads that a process has for requests.
MANY = 50
PAUSED = ObservedState(Status.PAUSED, pause_kind=PauseKind.FROZEN)

WaitFor = Callable[[int], None]
Fetch = Callable[..., Future[httpx.Response]]


@pytest.fixture
def fetch() -> Iterator[Fetch]:
    """Send requests in threads."""
    with ThreadPoolExecutor(2 * MANY) as pool:

        def fetch(api: httpx.Client, sandbox: Sandbox, **options: Any) -> Future[httpx.Response]:
            options = {"headers": key_of(sandbox)} | options
            return pool.submit(api.request, options.pop("method", "GET"), f"/sandbox/{sandbox.id}/api/x", **options)

        yield fetch


@pytest.fixture
def wait_for(waiters: list[CompletionWaiter]) -> WaitFor:
    """Return when this number of requests wait."""

    def wait_for(count: int) -> None:
        eventually(lambda: sum(len(one) for waiter in waiters for one in list(waiter._waiting.values())) == count)

    return wait_for


@pytest.fixture
def idle(worker: Worker) -> Worker:
    """A worker that does not resume."""
    worker.resume = lambda _: None
    return worker


def set_desired(database: Database, sandbox: Sandbox, desired: Desired) -> None:
    with database.transaction() as session:
        desired_state.set_desired(session, session.get_one(Sandbox, sandbox.id), desired, due_at=now())


def transitions_of(database: Database, sandbox: Sandbox) -> list[str]:
    with database.reading() as session:
        return [row.to_status for row in sandbox_queries.transitions(session, sandbox.id)]


class TestSuccessfulWake:
    @pytest.mark.parametrize("kind", PauseKind)
    def test_paused_sandbox_is_woken(
        self, api: httpx.Client, database: Database, user: ApiUser, agent: Agent, kind: PauseKind, worker: Worker
    ) -> None:
        sandbox = make_sandbox(database, user, status=Status.PAUSED, pause_kind=kind)
        agent.server.key = session_key_of(sandbox)
        response = api.post(f"/sandbox/{sandbox.id}/api/x?a=1", headers=key_of(sandbox), content=b"body")
        assert (response.status_code, response.json()["target"]) == (200, "/api/x?a=1")
        [got] = agent.server.got
        assert got.body_bytes == len(b"body")
        row = as_stored(database, sandbox)
        assert (row.desired, row.status, row.generation) == (Desired.RUNNING, Status.RUNNING, 2)
        assert worker.resumed == [sandbox.id]

    def test_many_requests_to_two_processes_cause_one_resume(
        self,
        serve: Serve,
        database: Database,
        paused: Sandbox,
        user: ApiUser,
        idle: Worker,
        agent: Agent,
        fetch: Fetch,
        wait_for: WaitFor,
    ) -> None:
        with serve() as first, serve() as second:
            keys = [key_of(paused), user.headers]
            fetched = [
                fetch(api, paused, headers=keys[number % 2]) for number in range(MANY) for api in (first, second)
            ]
            wait_for(2 * MANY)
            # Waiting requests hold neither threads nor connections.
            assert [
                api.get("/api/v1/sandboxes/search", headers=user.headers).status_code for api in (first, second)
            ] == [
                200,
                200,
            ]
            assert (as_stored(database, paused).generation, idle.resumed) == (2, [paused.id])
            settle(database, paused.id, agent.running)
            assert {one.result().status_code for one in fetched} == {200}
        assert len(agent.server.got) == 2 * MANY
        assert (transitions_of(database, paused), as_stored(database, paused).generation) == (["RUNNING"], 2)

    def test_sandbox_whose_pause_is_pending_is_resumed(
        self, api: httpx.Client, database: Database, running: Sandbox, worker: Worker
    ) -> None:
        set_desired(database, running, Desired.PAUSED)
        assert api.get(f"/sandbox/{running.id}/api/x", headers=key_of(running)).status_code == 200
        assert (worker.resumed, as_stored(database, running).desired) == ([running.id], Desired.RUNNING)

    def test_request_waits_for_a_booting_sandbox(
        self,
        api: httpx.Client,
        database: Database,
        user: ApiUser,
        agent: Agent,
        worker: Worker,
        fetch: Fetch,
        wait_for: WaitFor,
    ) -> None:
        sandbox = make_sandbox(database, user, status=Status.STARTING)
        agent.server.key = session_key_of(sandbox)
        fetched = fetch(api, sandbox)
        wait_for(1)
        settle(database, sandbox.id, agent.running)
        assert fetched.result().status_code == 200
        assert (worker.jobs, as_stored(database, sandbox).generation) == ([], 1)

    def test_caller_that_disconnects_frees_a_place_and_cancels_no_other_request(
        self,
        serve: Serve,
        database: Database,
        paused: Sandbox,
        idle: Worker,
        agent: Agent,
        fetch: Fetch,
        wait_for: WaitFor,
    ) -> None:
        with serve(wake_max_waiting=2) as api:
            with socket.create_connection((api.base_url.host, api.base_url.port or 0)) as first:
                key = session_key_of(paused)
                first.sendall(
                    f"GET /sandbox/{paused.id}/x HTTP/1.1\r\nHost: a\r\nX-Session-API-Key: {key}\r\n\r\n".encode()
                )
                wait_for(1)
                second = fetch(api, paused)
                wait_for(2)
            wait_for(1)
            third = fetch(api, paused)
            wait_for(2)
            settle(database, paused.id, agent.running)
            assert [one.result().status_code for one in (second, third)] == [200, 200]
        assert idle.resumed == [paused.id]

    def test_oldest_sandbox_is_paused_to_make_room(
        self, serve: Serve, database: Database, running: Sandbox, user: ApiUser, worker: Worker, agent: Agent
    ) -> None:
        sandbox = make_sandbox(database, user, status=Status.PAUSED)
        agent.server.key = session_key_of(sandbox)
        with serve(quota_running=1, quota_policy=QuotaPolicy.PAUSE_OLDEST) as api:
            assert api.get(f"/sandbox/{sandbox.id}/api/x", headers=key_of(sandbox)).status_code == 200
        assert worker.jobs[0] == PauseSandbox(running.id, running.node_id)
        assert as_stored(database, running).desired == Desired.PAUSED


class TestFailedWake:
    def test_spec_that_disables_waking_is_a_409(
        self, api: httpx.Client, database: Database, paused: Sandbox, running: Sandbox, worker: Worker, agent: Agent
    ) -> None:
        with database.transaction() as session:
            session.get_one(SandboxSpec, SPEC_ID).wake_on_traffic = False
        response = api.get(f"/sandbox/{paused.id}/api/x", headers=key_of(paused))
        assert (response.status_code, worker.jobs) == (409, [])
        assert f"POST /api/v1/sandboxes/{paused.id}/resume" in response.json()["detail"]
        agent.server.key = session_key_of(running)
        assert api.get(f"/sandbox/{running.id}/api/x", headers=key_of(running)).status_code == 200

    def test_sandbox_in_error_is_a_409_and_not_woken(
        self, api: httpx.Client, database: Database, user: ApiUser, worker: Worker
    ) -> None:
        sandbox = make_sandbox(database, user, status=Status.ERROR)
        response = api.get(f"/sandbox/{sandbox.id}/api/x", headers=key_of(sandbox))
        assert (response.status_code, worker.jobs) == (409, [])
        assert Reason.EXIT_CODE in response.json()["detail"]

    def test_wake_over_the_quota_is_a_429(
        self, serve: Serve, database: Database, running: Sandbox, paused: Sandbox, worker: Worker
    ) -> None:
        with serve(quota_running=1) as api:
            response = api.get(f"/sandbox/{paused.id}/api/x", headers=key_of(paused))
        assert (response.status_code, response.headers["Retry-After"]) == (429, "10")
        assert (worker.jobs, as_stored(database, paused), as_stored(database, running)) == ([], paused, running)

    def test_slow_wake_is_a_504(self, serve: Serve, database: Database, paused: Sandbox, idle: Worker) -> None:
        with serve(wake_seconds=0.1) as api:
            assert api.get(f"/sandbox/{paused.id}/api/x", headers=key_of(paused)).status_code == 504
        assert as_stored(database, paused).desired == Desired.RUNNING

    def test_request_over_the_limit_of_waiting_requests_is_a_503(
        self,
        serve: Serve,
        database: Database,
        paused: Sandbox,
        user: ApiUser,
        idle: Worker,
        agent: Agent,
        fetch: Fetch,
        wait_for: WaitFor,
    ) -> None:
        with serve(wake_max_waiting=1) as api:
            first = fetch(api, paused)
            wait_for(1)
            other = make_sandbox(database, user, status=Status.PAUSED)
            refused = api.get(f"/sandbox/{other.id}/api/x", headers=key_of(other))
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
            assert as_stored(database, other).desired == Desired.PAUSED
            settle(database, paused.id, agent.running)
            assert first.result().status_code == 200

    @pytest.mark.parametrize(
        ("desired", "observed", "status"),
        [
            (Desired.PAUSED, [PAUSED], 503),
            (Desired.DELETED, [ObservedState(Status.DELETING), ObservedState(Status.DELETED)], 404),
            (Desired.RUNNING, [ObservedState(Status.ERROR, Reason.START_FAILED)], 409),
        ],
    )
    def test_wake_that_fails_has_the_status_of_the_outcome(
        self,
        api: httpx.Client,
        database: Database,
        paused: Sandbox,
        idle: Worker,
        fetch: Fetch,
        wait_for: WaitFor,
        desired: Desired,
        observed: list[ObservedState],
        status: int,
    ) -> None:
        fetched = fetch(api, paused)
        wait_for(1)
        if desired != Desired.RUNNING:
            set_desired(database, paused, desired)
        settle(database, paused.id, *observed)
        assert fetched.result().status_code == status
        assert idle.resumed == [paused.id]

    def test_process_that_stops_ends_the_wait(
        self,
        api: httpx.Client,
        paused: Sandbox,
        idle: Worker,
        waiters: list[CompletionWaiter],
        fetch: Fetch,
        wait_for: WaitFor,
    ) -> None:
        fetched = fetch(api, paused)
        wait_for(1)
        waiters[0].close()
        response = fetched.result()
        assert (response.status_code, response.headers["Retry-After"]) == (503, "1")

"""Requests to sandboxes that do not run: held, woken once, served; or told why not."""

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
from shared.quota_limits import QuotaPolicy
from shared.sandboxes import desired_state
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes.status import ObservedState
from shared.states import Desired, PauseKind, Reason, Status
from tests.api.sandbox_proxy.parts import Agent, Serve, Worker, key_of
from tests.factories import SPEC_ID, Person, make_sandbox, session_key_of
from tests.fakes.worker import settle
from tests.rows import as_stored
from tests.waiting import eventually

# More than the threads that a process has for requests.
MANY = 50
FROZEN = ObservedState(Status.PAUSED, pause_kind=PauseKind.FROZEN)

Held = Callable[[int], None]
Ask = Callable[..., Future[httpx.Response]]


@pytest.fixture
def ask() -> Iterator[Ask]:
    """Sends requests in threads."""
    with ThreadPoolExecutor(2 * MANY) as pool:

        def ask(api: httpx.Client, sandbox: Sandbox, **options: Any) -> Future[httpx.Response]:
            options = {"headers": key_of(sandbox)} | options
            return pool.submit(api.request, options.pop("method", "GET"), f"/sandbox/{sandbox.id}/api/x", **options)

        yield ask


@pytest.fixture
def held(waiters: list[CompletionWaiter]) -> Held:
    """Returns when so many requests wait."""

    def held(count: int) -> None:
        eventually(lambda: sum(len(one) for waiter in waiters for one in list(waiter._waiting.values())) == count)

    return held


@pytest.fixture
def idle(worker: Worker) -> Worker:
    """A worker that a test carries out the resumes of."""
    worker.resume = lambda _: None
    return worker


def wish(database: Database, sandbox: Sandbox, desired: Desired) -> None:
    with database.transaction() as session:
        desired_state.set_desired(session, session.get_one(Sandbox, sandbox.id), desired, due_at=now())


def moves(database: Database, sandbox: Sandbox) -> list[str]:
    with database.reading() as session:
        return [move.to_status for move in sandbox_queries.transitions(session, sandbox.id)]


class TestSandboxThatWakes:
    @pytest.mark.parametrize("kind", PauseKind)
    def test_paused_sandbox_is_woken(
        self, api: httpx.Client, database: Database, user: Person, agent: Agent, kind: PauseKind, worker: Worker
    ) -> None:
        sandbox = make_sandbox(database, user, status=Status.PAUSED, pause_kind=kind)
        agent.server.key = session_key_of(sandbox)
        answer = api.post(f"/sandbox/{sandbox.id}/api/x?a=1", headers=key_of(sandbox), content=b"held")
        assert (answer.status_code, answer.json()["target"]) == (200, "/api/x?a=1")
        [got] = agent.server.got
        assert got.body_bytes == len(b"held")
        row = as_stored(database, sandbox)
        assert (row.desired, row.status, row.generation) == (Desired.RUNNING, Status.RUNNING, 2)
        assert worker.resumed == [sandbox.id]

    def test_many_requests_to_two_processes_resume_once(
        self,
        serve: Serve,
        database: Database,
        asleep: Sandbox,
        user: Person,
        idle: Worker,
        agent: Agent,
        ask: Ask,
        held: Held,
    ) -> None:
        with serve() as first, serve() as second:
            keys = [key_of(asleep), user.headers]
            asked = [ask(api, asleep, headers=keys[number % 2]) for number in range(MANY) for api in (first, second)]
            held(2 * MANY)
            # They hold neither threads nor connections.
            assert [
                api.get("/api/v1/sandboxes/search", headers=user.headers).status_code for api in (first, second)
            ] == [
                200,
                200,
            ]
            assert (as_stored(database, asleep).generation, idle.resumed) == (2, [asleep.id])
            settle(database, asleep.id, agent.running)
            assert {one.result().status_code for one in asked} == {200}
        assert len(agent.server.got) == 2 * MANY
        assert (moves(database, asleep), as_stored(database, asleep).generation) == (["RUNNING"], 2)

    def test_sandbox_that_is_about_to_be_paused_is_served(
        self, api: httpx.Client, database: Database, running: Sandbox, worker: Worker
    ) -> None:
        wish(database, running, Desired.PAUSED)
        assert api.get(f"/sandbox/{running.id}/api/x", headers=key_of(running)).status_code == 200
        assert (worker.resumed, as_stored(database, running).desired) == ([running.id], Desired.RUNNING)

    def test_sandbox_that_boots_is_waited_for(
        self, api: httpx.Client, database: Database, user: Person, agent: Agent, worker: Worker, ask: Ask, held: Held
    ) -> None:
        sandbox = make_sandbox(database, user, status=Status.STARTING)
        agent.server.key = session_key_of(sandbox)
        asked = ask(api, sandbox)
        held(1)
        settle(database, sandbox.id, agent.running)
        assert asked.result().status_code == 200
        assert (worker.jobs, as_stored(database, sandbox).generation) == ([], 1)

    def test_whoever_leaves_makes_room_and_takes_nobody_along(
        self, serve: Serve, database: Database, asleep: Sandbox, idle: Worker, agent: Agent, ask: Ask, held: Held
    ) -> None:
        with serve(wake_max_waiting=2) as api:
            with socket.create_connection((api.base_url.host, api.base_url.port or 0)) as first:
                key = session_key_of(asleep)
                first.sendall(
                    f"GET /sandbox/{asleep.id}/x HTTP/1.1\r\nHost: a\r\nX-Session-API-Key: {key}\r\n\r\n".encode()
                )
                held(1)
                second = ask(api, asleep)
                held(2)
            held(1)
            third = ask(api, asleep)
            held(2)
            settle(database, asleep.id, agent.running)
            assert [one.result().status_code for one in (second, third)] == [200, 200]
        assert idle.resumed == [asleep.id]

    def test_room_is_made_by_pausing_the_oldest(
        self, serve: Serve, database: Database, running: Sandbox, user: Person, worker: Worker, agent: Agent
    ) -> None:
        sandbox = make_sandbox(database, user, status=Status.PAUSED)
        agent.server.key = session_key_of(sandbox)
        with serve(quota_running=1, quota_policy=QuotaPolicy.PAUSE_OLDEST) as api:
            assert api.get(f"/sandbox/{sandbox.id}/api/x", headers=key_of(sandbox)).status_code == 200
        assert worker.jobs[0] == PauseSandbox(running.id, running.node_id)
        assert as_stored(database, running).desired == Desired.PAUSED


class TestSandboxThatDoesNotWake:
    def test_wake_that_is_off_is_refused(
        self, api: httpx.Client, database: Database, asleep: Sandbox, running: Sandbox, worker: Worker, agent: Agent
    ) -> None:
        with database.transaction() as session:
            session.get_one(SandboxSpec, SPEC_ID).wake_on_traffic = False
        answer = api.get(f"/sandbox/{asleep.id}/api/x", headers=key_of(asleep))
        assert (answer.status_code, worker.jobs) == (409, [])
        assert f"POST /api/v1/sandboxes/{asleep.id}/resume" in answer.json()["detail"]
        agent.server.key = session_key_of(running)
        assert api.get(f"/sandbox/{running.id}/api/x", headers=key_of(running)).status_code == 200

    def test_sandbox_in_error_is_a_409_and_not_woken(
        self, api: httpx.Client, database: Database, user: Person, worker: Worker
    ) -> None:
        sandbox = make_sandbox(database, user, status=Status.ERROR)
        answer = api.get(f"/sandbox/{sandbox.id}/api/x", headers=key_of(sandbox))
        assert (answer.status_code, worker.jobs) == (409, [])
        assert Reason.EXIT_CODE in answer.json()["detail"]

    def test_wake_over_the_quota_is_refused(
        self, serve: Serve, database: Database, running: Sandbox, asleep: Sandbox, worker: Worker
    ) -> None:
        with serve(quota_running=1) as api:
            answer = api.get(f"/sandbox/{asleep.id}/api/x", headers=key_of(asleep))
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "10")
        assert (worker.jobs, as_stored(database, asleep), as_stored(database, running)) == ([], asleep, running)

    def test_wake_that_takes_too_long_is_refused(
        self, serve: Serve, database: Database, asleep: Sandbox, idle: Worker
    ) -> None:
        with serve(wake_seconds=0.1) as api:
            assert api.get(f"/sandbox/{asleep.id}/api/x", headers=key_of(asleep)).status_code == 504
        assert as_stored(database, asleep).desired == Desired.RUNNING

    def test_wake_with_too_many_waiting_is_refused(
        self,
        serve: Serve,
        database: Database,
        asleep: Sandbox,
        user: Person,
        idle: Worker,
        agent: Agent,
        ask: Ask,
        held: Held,
    ) -> None:
        with serve(wake_max_waiting=1) as api:
            first = ask(api, asleep)
            held(1)
            other = make_sandbox(database, user, status=Status.PAUSED)
            refused = api.get(f"/sandbox/{other.id}/api/x", headers=key_of(other))
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
            assert as_stored(database, other).desired == Desired.PAUSED
            settle(database, asleep.id, agent.running)
            assert first.result().status_code == 200

    @pytest.mark.parametrize(
        ("desired", "facts", "status"),
        [
            (Desired.PAUSED, [FROZEN], 503),
            (Desired.DELETED, [ObservedState(Status.DELETING), ObservedState(Status.DELETED)], 404),
            (Desired.RUNNING, [ObservedState(Status.ERROR, Reason.START_FAILED)], 409),
        ],
    )
    def test_wake_that_ends_otherwise_says_what_came_of_it(
        self,
        api: httpx.Client,
        database: Database,
        asleep: Sandbox,
        idle: Worker,
        ask: Ask,
        held: Held,
        desired: Desired,
        facts: list[ObservedState],
        status: int,
    ) -> None:
        asked = ask(api, asleep)
        held(1)
        if desired != Desired.RUNNING:
            wish(database, asleep, desired)
        settle(database, asleep.id, *facts)
        assert asked.result().status_code == status
        assert idle.resumed == [asleep.id]

    def test_the_process_is_to_end(
        self, api: httpx.Client, asleep: Sandbox, idle: Worker, waiters: list[CompletionWaiter], ask: Ask, held: Held
    ) -> None:
        asked = ask(api, asleep)
        held(1)
        waiters[0].close()
        answer = asked.result()
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")

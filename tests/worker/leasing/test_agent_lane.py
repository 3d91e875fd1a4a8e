"""Hostile agent servers occupy some of a worker's job threads; the other threads serve other sandboxes."""

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import Any

import pytest

from shared.clock import now
from shared.models import Conversation, Sandbox, StartTask
from shared.queue.jobs import RefreshConversation, StartConversation
from shared.states import Desired, Stage, Status
from tests.doubles import RecordingPublisher
from tests.factories import Person, make_conversation, make_person
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.engine import FakeEngine
from tests.waiting import eventually
from tests.worker.scenes import ask, configure, row, running, server_of, set_desired, start, task_of
from worker.context import MAX_IN_SANDBOX, AgentLane, AgentWork, WorkerContext
from worker.conversations.refresh import refresh_conversation
from worker.conversations.start import start_conversation
from worker.sandboxes.reconciler import reconcile

# Max duration of a job that does not wait for a hostile server, on a busy machine.
JOB_SECONDS = 20


class JobThreads:
    """A worker's job threads, and servers that respond at the end of the test."""

    def __init__(self, context: WorkerContext, pool: ThreadPoolExecutor) -> None:
        self.context = context
        self.number = context.settings.concurrency
        self._pool = pool
        self._over = threading.Event()

    def silence(self, server: FakeAgentServer) -> None:
        """Stop the server's responses until the end of the test."""

        def wait(_method: str) -> None:
            self._over.wait(60)

        server.before = wait

    def submit(self, work: Any, row_id: str) -> Future[Any]:
        """Run a job on the next free thread."""
        return self._pool.submit(work, self.context, row_id)

    def run(self, work: Any, row_id: str) -> None:
        """Run a job and wait for its end."""
        self.submit(work, row_id).result(JOB_SECONDS)

    def end(self) -> None:
        """Let all servers respond."""
        self._over.set()


@pytest.fixture
def threads(context: WorkerContext) -> Iterator[JobThreads]:
    with ThreadPoolExecutor(context.settings.concurrency) as pool:
        threads = JobThreads(context, pool)
        yield threads
        threads.end()


def besiege(threads: JobThreads, jobs: Iterable[tuple[Any, str]], servers: list[FakeAgentServer]) -> None:
    """Submit as many jobs as there are threads, all of them for servers that do not respond."""
    for server in servers:
        threads.silence(server)
    submitted = [threads.submit(work, row_id) for work, row_id in jobs]
    assert len(submitted) == threads.number
    eventually(lambda: sum(len(server.calls) for server in servers) >= MAX_IN_SANDBOX)


def assert_others_are_served(threads: JobThreads, others: dict[Desired, str]) -> None:
    """Assert that these sandboxes can be paused, stopped and deleted."""
    for desired, sandbox_id in others.items():
        set_desired(threads.context, sandbox_id, desired)
        threads.run(reconcile, sandbox_id)
    found = [row(threads.context, Sandbox, sandbox_id).status for sandbox_id in others.values()]
    assert found == [Status.PAUSED, Status.PAUSED, Status.DELETED]


@pytest.fixture
def other_owner(context: WorkerContext, user: Person) -> Person:
    """Another user; both have an LLM."""
    other = make_person(context.database, "other-owner")
    for one in (user, other):
        configure(context, one)
    return other


@pytest.fixture
def others(context: WorkerContext, user: Person) -> dict[Desired, str]:
    """A sandbox to pause, one to stop and one to delete, by desired state."""
    return {desired: running(context, user) for desired in (Desired.PAUSED, Desired.STOPPED, Desired.DELETED)}


def test_starts_in_an_unresponsive_sandbox_leave_threads_for_others(
    threads: JobThreads,
    user: Person,
    engine: FakeEngine,
    sandbox_id: str,
    other_owner: Person,
    others: dict[Desired, str],
) -> None:
    context, server = threads.context, server_of(engine, sandbox_id)
    tasks = [ask(context, user, sandbox_id) for _ in range(threads.number)]
    their_own = running(context, other_owner)
    besiege(threads, ((start_conversation, one) for one in tasks), [server])
    assert_others_are_served(threads, others)
    new = start(context, user)
    threads.run(reconcile, new)
    assert row(context, Sandbox, new).status == Status.RUNNING
    their_task = ask(context, other_owner, their_own)
    threads.run(start_conversation, their_task)
    assert task_of(context, their_task).stage == Stage.READY
    waiting = [task for one in tasks if (task := task_of(context, one)).lease_until is None]
    assert waiting
    assert all(task.attempt == 0 and task.due_at is not None for task in waiting)


def test_many_unresponsive_sandboxes_leave_threads_for_others(
    threads: JobThreads, user: Person, engine: FakeEngine, other_owner: Person, others: dict[Desired, str]
) -> None:
    context = threads.context
    sandboxes = [row(context, Sandbox, running(context, user)) for _ in range(threads.number // 4)]
    servers = [server_of(engine, sandbox.id) for sandbox in sandboxes]
    stuck = chain.from_iterable(
        (make_conversation(context.database, user, sandbox, due_at=now()) for _ in range(4)) for sandbox in sandboxes
    )
    their_own = running(context, other_owner)
    besiege(threads, [(refresh_conversation, one.id) for one in stuck], servers)
    assert_others_are_served(threads, others)
    theirs = make_conversation(context.database, other_owner, row(context, Sandbox, their_own), due_at=now())
    server_of(engine, their_own).add(theirs.id).title = "A better one"
    threads.run(refresh_conversation, theirs.id)
    assert row(context, Conversation, theirs.id).title == "A better one"
    their_task = ask(context, other_owner, their_own)
    threads.run(start_conversation, their_task)
    assert row(context, StartTask, their_task).stage == Stage.READY


def work(owner: str, number: int, sandbox: str | None = None) -> AgentWork:
    """Return a start of this owner."""
    return AgentWork(StartConversation(f"{owner}-{number}", "node-a"), sandbox or f"{owner}-{number}", owner)


def enter_all(lane: AgentLane, owner: str) -> int:
    """Return how many of 40 jobs get a place."""
    return sum(lane.enter(work(owner, number)) for number in range(40))


class TestShares:
    def test_first_owner_gets_a_quarter_and_later_ones_less(self) -> None:
        lane = AgentLane(32)
        assert [enter_all(lane, owner) for owner in "abcdef"] == [8, 4, 2, 1, 1, 0]

    def test_few_threads_are_shared_too(self) -> None:
        assert [enter_all(AgentLane(threads), "a") for threads in (1, 2, 3, 4, 8)] == [1, 1, 1, 1, 2]

    def test_sandbox_gets_four_places_for_each_kind_of_job(self) -> None:
        lane = AgentLane(320)
        starts = [work("a", number, "one") for number in range(MAX_IN_SANDBOX + 1)]
        refreshes = [one._replace(job=RefreshConversation(one.job.subject, "node-a")) for one in starts]
        for jobs in (starts, refreshes):
            assert [lane.enter(one) for one in jobs] == [True] * MAX_IN_SANDBOX + [False]

    def test_free_place_is_offered_to_each_owner_in_order(self) -> None:
        lane = AgentLane(32)
        for owner in "abcde":
            enter_all(lane, owner)
        offered = [lane.leave(work("a", number)) for number in range(5)]
        assert [job.subject if job else None for job in offered] == [None, "d-1", "c-2", "e-1", "a-8"]

    def test_no_job_is_offered_if_none_waits(self) -> None:
        lane = AgentLane(32)
        lane.enter(work("a", 1))
        assert lane.leave(work("a", 1)) is None

    def test_retry_delay_grows_with_waiting_jobs(self) -> None:
        lane = AgentLane(32)
        seconds = [lane.retry_seconds]
        for owner in "abc":
            enter_all(lane, owner)
            seconds.append(lane.retry_seconds)
        assert seconds == [2.0, 3.2, 6.8, 10.6]


def test_waiting_job_is_enqueued_when_a_place_is_free(
    threads: JobThreads, user: Person, engine: FakeEngine, sandbox_id: str
) -> None:
    context = threads.context
    configure(context, user)
    assert isinstance(context.publisher, RecordingPublisher)
    tasks = [ask(context, user, sandbox_id) for _ in range(MAX_IN_SANDBOX + 1)]
    threads.silence(server_of(engine, sandbox_id))
    stuck = [threads.submit(start_conversation, one) for one in tasks[:-1]]
    eventually(lambda: len(server_of(engine, sandbox_id).calls) == MAX_IN_SANDBOX)
    threads.run(start_conversation, tasks[-1])
    waiting = StartConversation(tasks[-1], context.settings.node)
    assert waiting not in context.publisher.jobs
    threads.end()
    for one in stuck:
        one.result(JOB_SECONDS)
    assert waiting in context.publisher.jobs
    threads.run(start_conversation, tasks[-1])
    assert task_of(context, tasks[-1]).stage == Stage.READY

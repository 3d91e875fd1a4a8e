"""Hostile agent servers take a part of a worker's job threads; the others carry out what other sandboxes need."""

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
from tests.worker.scenes import ask, configure, row, running, server_of, start, task_of, wish
from worker.context import WorkerContext
from worker.conversations.refresh import refresh_conversation
from worker.conversations.start import start_conversation
from worker.leasing.agent_lane import MAX_IN_SANDBOX, AgentLane, AgentWork
from worker.sandboxes.reconciler import reconcile

# Longer than it takes on a busy machine, and less than a hostile server may take.
AT_ONCE_SECONDS = 20


class JobThreads:
    """A worker's job threads, and servers that answer when the test is over."""

    def __init__(self, context: WorkerContext, pool: ThreadPoolExecutor) -> None:
        self.context = context
        self.number = context.settings.concurrency
        self._pool = pool
        self._over = threading.Event()

    def silence(self, server: FakeAgentServer) -> None:
        """Have the server answer nothing until the end of the test."""

        def wait(_method: str) -> None:
            self._over.wait(60)

        server.before = wait

    def submit(self, work: Any, subject: str) -> Future[Any]:
        """Have a job carried out by the next free thread."""
        return self._pool.submit(work, self.context, subject)

    def execute_and_commit(self, work: Any, subject: str) -> None:
        """Have a job carried out, now."""
        self.submit(work, subject).result(AT_ONCE_SECONDS)

    def end(self) -> None:
        """Let all servers answer."""
        self._over.set()


@pytest.fixture
def threads(context: WorkerContext) -> Iterator[JobThreads]:
    with ThreadPoolExecutor(context.settings.concurrency) as pool:
        threads = JobThreads(context, pool)
        yield threads
        threads.end()


def besiege(threads: JobThreads, jobs: Iterable[tuple[Any, str]], servers: list[FakeAgentServer]) -> None:
    """Have silent servers asked by as many jobs as there are threads."""
    for server in servers:
        threads.silence(server)
    submitted = [threads.submit(work, subject) for work, subject in jobs]
    assert len(submitted) == threads.number
    eventually(lambda: sum(len(server.calls) for server in servers) >= MAX_IN_SANDBOX)


def assert_others_are_served(threads: JobThreads, others: dict[Desired, str]) -> None:
    """Pause, stop and delete these."""
    for desired, sandbox_id in others.items():
        wish(threads.context, sandbox_id, desired)
        threads.execute_and_commit(reconcile, sandbox_id)
    found = [row(threads.context, Sandbox, sandbox_id).status for sandbox_id in others.values()]
    assert found == [Status.PAUSED, Status.PAUSED, Status.DELETED]


@pytest.fixture
def stranger(context: WorkerContext, user: Person) -> Person:
    """Another user; both have an LLM."""
    other = make_person(context.database, "stranger")
    for one in (user, other):
        configure(context, one)
    return other


@pytest.fixture
def others(context: WorkerContext, user: Person) -> dict[Desired, str]:
    """A sandbox to be paused, one to be stopped and one to be deleted."""
    return {desired: running(context, user) for desired in (Desired.PAUSED, Desired.STOPPED, Desired.DELETED)}


def test_starts_in_a_silent_sandbox_leave_threads_for_others(
    threads: JobThreads, user: Person, engine: FakeEngine, sandbox_id: str, stranger: Person, others: dict[Desired, str]
) -> None:
    context, server = threads.context, server_of(engine, sandbox_id)
    tasks = [ask(context, user, sandbox_id) for _ in range(threads.number)]
    their_own = running(context, stranger)
    besiege(threads, ((start_conversation, one) for one in tasks), [server])
    assert_others_are_served(threads, others)
    new = start(context, user)
    threads.execute_and_commit(reconcile, new)
    assert row(context, Sandbox, new).status == Status.RUNNING
    their_task = ask(context, stranger, their_own)
    threads.execute_and_commit(start_conversation, their_task)
    assert task_of(context, their_task).stage == Stage.READY
    waiting = [task for one in tasks if (task := task_of(context, one)).lease_until is None]
    assert waiting
    assert all(task.attempt == 0 and task.due_at is not None for task in waiting)


def test_many_silent_sandboxes_leave_threads_for_others(
    threads: JobThreads, user: Person, engine: FakeEngine, stranger: Person, others: dict[Desired, str]
) -> None:
    context = threads.context
    sandboxes = [row(context, Sandbox, running(context, user)) for _ in range(threads.number // 4)]
    servers = [server_of(engine, sandbox.id) for sandbox in sandboxes]
    stuck = chain.from_iterable(
        (make_conversation(context.database, user, sandbox, due_at=now()) for _ in range(4)) for sandbox in sandboxes
    )
    their_own = running(context, stranger)
    besiege(threads, [(refresh_conversation, one.id) for one in stuck], servers)
    assert_others_are_served(threads, others)
    theirs = make_conversation(context.database, stranger, row(context, Sandbox, their_own), due_at=now())
    server_of(engine, their_own).add(theirs.id).title = "A better one"
    threads.execute_and_commit(refresh_conversation, theirs.id)
    assert row(context, Conversation, theirs.id).title == "A better one"
    their_task = ask(context, stranger, their_own)
    threads.execute_and_commit(start_conversation, their_task)
    assert row(context, StartTask, their_task).stage == Stage.READY


def work(owner: str, number: int, sandbox: str | None = None) -> AgentWork:
    """A start of this owner's."""
    return AgentWork(StartConversation(f"{owner}-{number}", "node-a"), sandbox or f"{owner}-{number}", owner)


def enter_all(lane: AgentLane, owner: str) -> int:
    """How many of many jobs find a place."""
    return sum(lane.enter(work(owner, number)) for number in range(40))


class TestShares:
    def test_an_owner_gets_a_quarter_and_each_other_one_a_part_of_the_rest(self) -> None:
        lane = AgentLane(32)
        assert [enter_all(lane, owner) for owner in "abcdef"] == [8, 4, 2, 1, 1, 0]

    def test_few_threads_are_shared_out_too(self) -> None:
        assert [enter_all(AgentLane(threads), "a") for threads in (1, 2, 3, 4, 8)] == [1, 1, 1, 1, 2]

    def test_a_sandbox_gets_four_of_each_kind(self) -> None:
        lane = AgentLane(320)
        starts = [work("a", number, "one") for number in range(MAX_IN_SANDBOX + 1)]
        refreshes = [one._replace(job=RefreshConversation(one.job.subject, "node-a")) for one in starts]
        for jobs in (starts, refreshes):
            assert [lane.enter(one) for one in jobs] == [True] * MAX_IN_SANDBOX + [False]

    def test_a_free_place_is_offered_to_owners_by_turns(self) -> None:
        lane = AgentLane(32)
        for owner in "abcde":
            enter_all(lane, owner)
        offered = [lane.leave(work("a", number)) for number in range(5)]
        assert [job.subject if job else None for job in offered] == [None, "d-1", "c-2", "e-1", "a-8"]

    def test_nothing_is_offered_where_nobody_waits(self) -> None:
        lane = AgentLane(32)
        lane.enter(work("a", 1))
        assert lane.leave(work("a", 1)) is None

    def test_many_that_wait_come_again_later(self) -> None:
        lane = AgentLane(32)
        seconds = [lane.retry_seconds]
        for owner in "abc":
            enter_all(lane, owner)
            seconds.append(lane.retry_seconds)
        assert seconds == [2.0, 3.2, 6.8, 10.6]


def test_a_job_that_waits_is_enqueued_when_a_place_is_free(
    threads: JobThreads, user: Person, engine: FakeEngine, sandbox_id: str
) -> None:
    context = threads.context
    configure(context, user)
    assert isinstance(context.publisher, RecordingPublisher)
    tasks = [ask(context, user, sandbox_id) for _ in range(MAX_IN_SANDBOX + 1)]
    threads.silence(server_of(engine, sandbox_id))
    stuck = [threads.submit(start_conversation, one) for one in tasks[:-1]]
    eventually(lambda: len(server_of(engine, sandbox_id).calls) == MAX_IN_SANDBOX)
    threads.execute_and_commit(start_conversation, tasks[-1])
    waiting = StartConversation(tasks[-1], context.settings.node)
    assert waiting not in context.publisher.jobs
    threads.end()
    for one in stuck:
        one.result(AT_ONCE_SECONDS)
    assert waiting in context.publisher.jobs
    threads.execute_and_commit(start_conversation, tasks[-1])
    assert task_of(context, tasks[-1]).stage == Stage.READY

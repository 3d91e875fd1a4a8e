"""Hostile agent servers occupy some of a worker's job threads; the other threads serve other sandboxes."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import pytest

from shared.clock import now
from shared.models import Conversation, Sandbox, StartTask
from shared.queue.jobs import RefreshConversation, StartConversation
from shared.states import Desired, Stage, Status
from tests.doubles import RecordingPublisher
from tests.factories import ApiUser, make_conversation, make_user
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.engine import FakeEngine
from tests.waiting import eventually
from tests.worker.job_threads import JOB_SECONDS, JobThreads, assert_others_are_served, job_threads
from tests.worker.scenarios import configure, request_start, row, running, server_of, start, task_of
from worker.context import MAX_IN_SANDBOX, Lane, LaneJob, WorkerContext
from worker.conversations.refresh import refresh_conversation
from worker.conversations.start import start_conversation
from worker.sandboxes.reconciler import reconcile


@pytest.fixture
def threads(context: WorkerContext) -> Iterator[JobThreads]:
    with job_threads(context) as threads:
        yield threads


def occupy(threads: JobThreads, jobs: Iterable[tuple[Any, str]], servers: list[FakeAgentServer]) -> None:
    """Submit as many jobs as there are threads, all of them for servers that do not respond."""
    for server in servers:
        threads.silence(server)
    submitted = [threads.submit(work, row_id) for work, row_id in jobs]
    assert len(submitted) == threads.number
    eventually(lambda: sum(len(server.calls) for server in servers) >= MAX_IN_SANDBOX)


@pytest.fixture
def other_owner(context: WorkerContext, user: ApiUser) -> ApiUser:
    """Another user; both users have configured an LLM."""
    other = make_user(context.database, "other-owner")
    for one in (user, other):
        configure(context, one)
    return other


@pytest.fixture
def other_sandboxes(context: WorkerContext, user: ApiUser) -> dict[Desired, str]:
    """A sandbox to pause, one to stop and one to delete, by desired state."""
    return {desired: running(context, user) for desired in (Desired.PAUSED, Desired.STOPPED, Desired.DELETED)}


def test_starts_in_an_unresponsive_sandbox_leave_threads_for_others(
    threads: JobThreads,
    user: ApiUser,
    engine: FakeEngine,
    sandbox_id: str,
    other_owner: ApiUser,
    other_sandboxes: dict[Desired, str],
) -> None:
    context, server = threads.context, server_of(engine, sandbox_id)
    tasks = [request_start(context, user, sandbox_id) for _ in range(threads.number)]
    their_own = running(context, other_owner)
    occupy(threads, ((start_conversation, one) for one in tasks), [server])
    assert_others_are_served(threads, other_sandboxes)
    new = start(context, user)
    threads.run(reconcile, new)
    assert row(context, Sandbox, new).status == Status.RUNNING
    their_task = request_start(context, other_owner, their_own)
    threads.run(start_conversation, their_task)
    assert task_of(context, their_task).stage == Stage.READY
    waiting = [task for one in tasks if (task := task_of(context, one)).lease_until is None]
    assert waiting
    assert all(task.attempt == 0 and task.due_at is not None for task in waiting)


def test_many_unresponsive_sandboxes_leave_threads_for_others(
    threads: JobThreads, user: ApiUser, engine: FakeEngine, other_owner: ApiUser, other_sandboxes: dict[Desired, str]
) -> None:
    context = threads.context
    sandboxes = [row(context, Sandbox, running(context, user)) for _ in range(threads.number // 4)]
    servers = [server_of(engine, sandbox.id) for sandbox in sandboxes]
    stuck = chain.from_iterable(
        (make_conversation(context.database, user, sandbox, due_at=now()) for _ in range(4)) for sandbox in sandboxes
    )
    their_own = running(context, other_owner)
    occupy(threads, [(refresh_conversation, one.id) for one in stuck], servers)
    assert_others_are_served(threads, other_sandboxes)
    theirs = make_conversation(context.database, other_owner, row(context, Sandbox, their_own), due_at=now())
    server_of(engine, their_own).add(theirs.id).title = "A better one"
    threads.run(refresh_conversation, theirs.id)
    assert row(context, Conversation, theirs.id).title == "A better one"
    their_task = request_start(context, other_owner, their_own)
    threads.run(start_conversation, their_task)
    assert row(context, StartTask, their_task).stage == Stage.READY


def work(owner: str, number: int, sandbox: str | None = None) -> LaneJob:
    """Return a start of this owner."""
    return LaneJob(StartConversation(f"{owner}-{number}", "node-a"), sandbox or f"{owner}-{number}", owner)


def enter_all(lane: Lane, owner: str) -> int:
    """Return how many of 40 jobs get a slot."""
    return sum(lane.enter(work(owner, number)) for number in range(40))


class TestShares:
    def test_first_owner_gets_half_and_each_later_one_less_but_one_at_least(self) -> None:
        lane = Lane(16)
        assert [enter_all(lane, owner) for owner in "abcdefg"] == [8, 4, 2, 1, 1, 1, 1]

    def test_few_places_are_shared(self) -> None:
        assert [enter_all(Lane(slots), "a") for slots in (1, 2, 3, 4, 8)] == [1, 1, 2, 2, 4]

    def test_place_beyond_the_limit_is_passed_to_its_owner_only(self) -> None:
        lane = Lane(1)
        assert [lane.enter(work(owner, 1)) for owner in "ab"] == [True, True]
        assert not lane.enter(work("a", 2))
        assert lane.leave(work("b", 1)) is None
        assert lane.leave(work("a", 1)) == work("a", 2)

    def test_sandbox_gets_four_places_for_each_kind_of_job(self) -> None:
        lane = Lane(160)
        starts = [work("a", number, "one") for number in range(MAX_IN_SANDBOX + 1)]
        refreshes = [one._replace(job=RefreshConversation(one.job.subject, "node-a")) for one in starts]
        for jobs in (starts, refreshes):
            assert [lane.enter(one) for one in jobs] == [True] * MAX_IN_SANDBOX + [False]

    def test_free_place_is_offered_to_each_owner_in_order(self) -> None:
        lane = Lane(16)
        for owner in "abcde":
            enter_all(lane, owner)
        offered = [lane.leave(work("a", number)) for number in range(5)]
        assert [one.job.subject if one else None for one in offered] == [None, "d-1", "c-2", "e-1", "a-8"]

    def test_no_job_is_offered_if_no_job_waits(self) -> None:
        lane = Lane(16)
        lane.enter(work("a", 1))
        assert lane.leave(work("a", 1)) is None

    def test_retry_delay_grows_with_waiting_jobs(self) -> None:
        lane = Lane(16)
        seconds = [lane.retry_seconds]
        for owner in "abc":
            enter_all(lane, owner)
            seconds.append(lane.retry_seconds)
        assert seconds == [2.0, 3.2, 6.8, 10.6]


def test_waiting_job_is_enqueued_when_a_place_is_free(
    threads: JobThreads, user: ApiUser, engine: FakeEngine, sandbox_id: str
) -> None:
    context = threads.context
    configure(context, user)
    assert isinstance(context.publisher, RecordingPublisher)
    tasks = [request_start(context, user, sandbox_id) for _ in range(MAX_IN_SANDBOX + 1)]
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

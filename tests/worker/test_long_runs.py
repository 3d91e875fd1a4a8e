"""Long runs leave their job threads, so that any number of hostile sandboxes delays no other sandbox."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from shared.clock import now
from shared.leasing import leases
from shared.models import Sandbox
from shared.queue.jobs import CheckSandbox
from shared.states import Desired, Status
from tests.doubles import RecordingPublisher
from tests.factories import ApiUser, make_conversation, make_user
from tests.fakes.engine import IMAGE, FakeEngine
from tests.waiting import eventually
from tests.worker.job_threads import JobThreads, assert_others_are_served, job_threads
from tests.worker.scenarios import row, running, server_of, set_desired, start
from worker.context import Lane, LongRuns, WorkerContext
from worker.loops.recheck import open_threads, recheck
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile

BOOT_SECONDS = 60.0


@pytest.fixture
def context(context: WorkerContext) -> WorkerContext:
    """Context of a worker that waits for agent servers longer than a test takes."""
    return replace(context, settings=context.settings.model_copy(update={"health_timeout": BOOT_SECONDS}))


@pytest.fixture
def threads(context: WorkerContext, engine: FakeEngine) -> Iterator[JobThreads]:
    """The worker's job threads, and threads for long runs."""
    with ThreadPoolExecutor(200) as pool, job_threads(replace(context, runs=LongRuns(pool))) as threads:
        yield threads
        engine.silent.clear()


@pytest.fixture
def other_user(context: WorkerContext) -> ApiUser:
    return make_user(context.database, "other-owner")


@pytest.fixture
def other_sandboxes(context: WorkerContext, other_user: ApiUser) -> dict[Desired, str]:
    """Another user's sandboxes: one to pause, one to stop and one to delete, by desired state."""
    return {desired: running(context, other_user) for desired in (Desired.PAUSED, Desired.STOPPED, Desired.DELETED)}


def silent_boots(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> list[str]:
    """Sandboxes to start, whose agent servers will not respond."""
    return silent(engine, [start(context, user) for _ in range(context.settings.concurrency)])


def silent_resumes(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> list[str]:
    """Sandboxes to resume, whose agent servers do not respond any more."""
    return silent(engine, [requested(context, user, Desired.PAUSED, Desired.RUNNING) for _ in range(32)])


def silent_checks(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> list[str]:
    """Running sandboxes to check, whose containers were restarted, and whose agent servers do not respond since."""
    found = [running(context, user) for _ in range(context.settings.concurrency)]
    for sandbox_id in found:
        engine.stop(container_name(sandbox_id), 0)
        engine.start(container_name(sandbox_id))
        with context.database.transaction() as session:
            leases.mark_due(session, Sandbox, sandbox_id, now())
    return silent(engine, found)


def requested(context: WorkerContext, user: ApiUser, *states: Desired) -> str:
    """A sandbox that has reached all of these desired states except the last one."""
    sandbox_id = running(context, user)
    for desired in states[:-1]:
        set_desired(context, sandbox_id, desired)
        reconcile(context, sandbox_id)
    set_desired(context, sandbox_id, states[-1])
    return sandbox_id


def silent(engine: FakeEngine, sandbox_ids: list[str]) -> list[str]:
    engine.silent |= set(map(container_name, sandbox_ids))
    return sandbox_ids


@pytest.mark.parametrize("make_hostile", [silent_boots, silent_resumes, silent_checks])
def test_silent_servers_delay_no_other_sandbox(
    context: WorkerContext,
    threads: JobThreads,
    user: ApiUser,
    other_user: ApiUser,
    engine: FakeEngine,
    other_sandboxes: dict[Desired, str],
    make_hostile: Callable[[WorkerContext, ApiUser, FakeEngine], list[str]],
) -> None:
    hostile = make_hostile(context, user, engine)
    engine.calls.clear()
    for sandbox_id in hostile:
        threads.submit(reconcile, sandbox_id)
    assert_others_are_served(threads, other_sandboxes)
    new = start(context, other_user)
    threads.run(reconcile, new)
    eventually(lambda: row(context, Sandbox, new).status == Status.RUNNING, deadline_seconds=20)
    assert len({name for verb, name in engine.calls if verb == "observe"} & set(map(container_name, hostile))) >= 16


def test_pauses_that_servers_hold_up_delay_no_other_sandbox(
    context: WorkerContext, threads: JobThreads, user: ApiUser, engine: FakeEngine, other_sandboxes: dict[Desired, str]
) -> None:
    """Each pause waits until the sandbox's agents are interrupted."""
    for _ in range(threads.number):
        sandbox_id = running(context, user)
        make_conversation(context.database, user, row(context, Sandbox, sandbox_id))
        threads.silence(server_of(engine, sandbox_id))
        set_desired(context, sandbox_id, Desired.PAUSED)
        threads.submit(reconcile, sandbox_id)
    assert_others_are_served(threads, other_sandboxes)


def test_starts_of_an_image_wait_for_one_pull(
    threads: JobThreads, user: ApiUser, engine: FakeEngine, other_sandboxes: dict[Desired, str]
) -> None:
    context = threads.context
    engine.images, engine.pullable, engine.before = set(), {IMAGE}, {"pull": threads.wait}
    new = [start(context, user) for _ in range(threads.number)]
    for sandbox_id in new:
        threads.submit(reconcile, sandbox_id)
    eventually(lambda: engine.verbs().count("create") >= 16)
    assert_others_are_served(threads, other_sandboxes)
    set_desired(context, new[0], Desired.DELETED)
    threads.submit(reconcile, new[0])
    eventually(lambda: row(context, Sandbox, new[0]).status == Status.DELETED)
    assert engine.verbs().count("pull") == 1
    threads.end()
    eventually(lambda: [row(context, Sandbox, one).status for one in new].count(Status.RUNNING) >= 15)


@pytest.mark.parametrize("desired", [Desired.PAUSED, Desired.STOPPED])
def test_pause_that_creates_the_container_takes_no_place(
    context: WorkerContext, user: ApiUser, monkeypatch: pytest.MonkeyPatch, desired: Desired
) -> None:
    """Its owner may pause a sandbox whose start waits for a place."""
    sandbox_id = start(context, user)
    monkeypatch.setattr(context.boots, "enter", lambda _work: False)
    reconcile(context, sandbox_id)
    assert row(context, Sandbox, sandbox_id).status == Status.STARTING
    set_desired(context, sandbox_id, desired)
    reconcile(context, sandbox_id)
    assert row(context, Sandbox, sandbox_id).status == Status.PAUSED


def test_owner_boots_a_limited_number_of_sandboxes_at_a_time(
    threads: JobThreads, user: ApiUser, other_user: ApiUser, engine: FakeEngine
) -> None:
    """Each further sandbox is enqueued when another one has booted; other owners need not wait for these boots."""
    context = replace(threads.context, boots=Lane(4))
    publisher = context.publisher
    assert isinstance(publisher, RecordingPublisher)
    booting = silent(engine, [start(context, user) for _ in range(3)])
    runs = [threading.Thread(target=reconcile, args=(context, one)) for one in booting]
    for run in runs:
        run.start()
    eventually(lambda: engine.verbs().count("start") == 2)
    for run in runs:
        run.join()
    new = start(context, other_user)
    reconcile(context, new)
    assert row(context, Sandbox, new).status == Status.RUNNING
    waiting = [one for one in booting if row(context, Sandbox, one).lease_until is None]
    found = row(context, Sandbox, waiting[0])
    assert (len(waiting), found.attempt, found.due_at is not None) == (1, 0, True)
    publisher.jobs.clear()
    engine.silent.clear()
    eventually(lambda: publisher.jobs == [CheckSandbox(waiting[0], context.settings.node)])


def test_checks_that_servers_hold_up_delay_no_other_check(
    context: WorkerContext, threads: JobThreads, user: ApiUser, engine: FakeEngine, other_sandboxes: dict[Desired, str]
) -> None:
    checking = replace(threads.context, status_checks=open_threads(), waiting_checks=set())
    hostile, changed = [running(context, user) for _ in range(threads.number)], other_sandboxes[Desired.PAUSED]
    names = set(map(container_name, hostile))
    engine.requested = lambda name: threads.wait(name) if name in names else None
    engine.pause(container_name(changed))
    for sandbox_id in [*hostile, changed]:
        recheck(checking, sandbox_id)
    eventually(lambda: row(context, Sandbox, changed).status == Status.PAUSED, deadline_seconds=20)
    assert all(row(context, Sandbox, one).lease_until for one in hostile)
    checking.status_checks.shutdown()


class Work:
    """A run that continues until the test ends it."""

    def __init__(self) -> None:
        self.may_end, self.has_ended = threading.Event(), threading.Event()

    def __call__(self) -> bool:
        self.may_end.wait(20)
        self.has_ended.set()
        return True


def fail() -> bool:
    raise ZeroDivisionError


class TestRuns:
    @pytest.fixture
    def runs(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[LongRuns]:
        monkeypatch.setattr("worker.context.JOB_SECONDS", 0.2)
        with ThreadPoolExecutor(10) as threads:
            yield LongRuns(threads)

    @pytest.mark.parametrize("result", [True, False])
    def test_short_run_has_a_result(self, runs: LongRuns, result: bool) -> None:
        assert runs.run(lambda: result) is result

    def test_error_of_a_short_run_is_raised(self, runs: LongRuns) -> None:
        with pytest.raises(ZeroDivisionError):
            runs.run(fail)

    def test_long_run_continues(self, runs: LongRuns) -> None:
        work = Work()
        assert not runs.run(work)
        assert not work.has_ended.is_set()
        work.may_end.set()
        assert work.has_ended.wait(20)

    def test_error_of_a_long_run_is_logged(self, runs: LongRuns) -> None:
        work = Work()
        with capture_logs() as logs:
            runs.run(lambda: work() and fail())
            work.may_end.set()
            eventually(lambda: logs)
        assert [(entry["event"], entry["error"]) for entry in logs] == [("run_failed", "ZeroDivisionError")]

    def test_close_waits_for_long_runs(self, runs: LongRuns) -> None:
        work = Work()
        runs.run(work)
        threading.Timer(0.1, work.may_end.set).start()
        runs.close()
        assert work.has_ended.is_set()

"""Quotas hold under any number of concurrent requests, on both databases."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy.exc import OperationalError
from sqlmodel import Session, select

from shared.clock import now
from shared.conversations import start as conversation_start
from shared.conversations.start import Start, StartCommand
from shared.db.database import Database
from shared.errors import QuotaExceeded
from shared.models import Sandbox, SandboxSpec, StartTask
from shared.sandboxes import desired_state, quotas
from shared.sandboxes import queries as sandbox_queries
from shared.settings import QuotaPolicy, Quotas
from shared.sql import locks
from shared.states import Desired, Stage, Status
from shared.warm_pool import start as sandbox_start
from tests import effort
from tests.factories import VAULT, ApiUser, make_sandbox, make_start_task
from tests.interleaving import overlap

pytestmark = pytest.mark.usefixtures("model_key")

# More concurrent requests than any quota here admits.
REQUESTS = effort.choose(quick=80, change=80, thorough=1000)
THREADS = 16
PAUSING = QuotaPolicy.PAUSE_OLDEST
OLD = now() - timedelta(days=1)

Attempt = Callable[[Session], list[str]]


def create_in(session: Session, owner: ApiUser, spec: SandboxSpec, limits: Quotas) -> list[str]:
    """Create as the route does, and return the ids of the paused sandboxes."""
    if limits:
        locks.lock_user(session, owner.id)
    started = sandbox_start.start(session, VAULT, owner_id=owner.id, spec=spec, due_at=now(), quotas=limits)
    return [row.id for row in started.paused]


def resume_in(session: Session, owner: ApiUser, sandbox_id: str, limits: Quotas) -> list[str]:
    if limits:
        locks.lock_user(session, owner.id)
    quotas.lock_resumed(session, sandbox_id, owner.id, limits)
    sandbox = sandbox_queries.get(session, sandbox_id, owner.id, lock=True)
    paused = quotas.admit_resume(session, sandbox, limits, due_at=now())
    desired_state.set_desired(session, sandbox, Desired.RUNNING, due_at=now())
    return [row.id for row in paused]


def start_in(session: Session, owner: ApiUser, limits: Quotas, sandbox_id: str | None = None) -> Start:
    command = StartCommand(owner.id, {"sandbox_id": sandbox_id}, {}, now(), limits)
    return conversation_start.create_start_task(session, VAULT, command)


def rejected(act: Callable[[Session], object], session: Session) -> bool:
    """Run an action; return whether a quota rejects it, in which case it is rolled back."""
    try:
        with session.begin_nested():
            act(session)
    except QuotaExceeded:
        return True
    return False


def run_concurrently(database: Database, attempts: list[Attempt]) -> Counter[bool]:
    """Run all the attempts concurrently, and count those admitted and those rejected."""

    def attempt(act: Attempt) -> bool:
        try:
            with database.transaction() as session:
                act(session)
        except QuotaExceeded:
            return False
        except OperationalError:
            if database.engine.dialect.name != "sqlite":
                raise
            return attempt(act)  # its writers don't queue: a client gets a 503 and retries
        return True

    with ThreadPoolExecutor(THREADS) as pool:
        return Counter(pool.map(attempt, attempts))


def find_desired(database: Database, owner: ApiUser, *desired: Desired) -> list[Sandbox]:
    with database.reading() as session:
        rows = session.exec(select(Sandbox).where(Sandbox.owner_id == owner.id)).all()
        return [row for row in rows if row.desired in desired]


def admit(database: Database, act: Attempt) -> list[str]:
    with database.transaction() as session:
        return act(session)


class TestManyRequests:
    @pytest.mark.parametrize(
        "limits",
        [Quotas(running=7), Quotas(sandboxes=7), Quotas(creates_per_minute=7)],
        ids=["running", "sandboxes", "creates"],
    )
    def test_concurrent_creates_never_exceed_a_quota(
        self, database: Database, user: ApiUser, spec: SandboxSpec, limits: Quotas
    ) -> None:
        counts = run_concurrently(database, [lambda session: create_in(session, user, spec, limits)] * REQUESTS)
        assert counts == {True: 7, False: REQUESTS - 7}
        assert len(find_desired(database, user, *Desired)) == 7

    def test_creates_pause_older_sandboxes(self, database: Database, user: ApiUser, spec: SandboxSpec) -> None:
        limits = Quotas(running=3, policy=PAUSING)
        counts = run_concurrently(database, [lambda session: create_in(session, user, spec, limits)] * 40)
        assert counts == {True: 40}
        assert len(find_desired(database, user, Desired.RUNNING)) == 3
        assert len(find_desired(database, user, Desired.PAUSED)) == 37

    def test_mixed_requests_never_exceed_a_quota(self, database: Database, user: ApiUser, spec: SandboxSpec) -> None:
        limits = Quotas(running=5)
        asleep = [make_sandbox(database, user, status=Status.PAUSED).id for _ in range(20)]

        def start(session: Session) -> list[str]:
            return [row.id for row in start_in(session, user, limits).paused]

        attempts: list[Attempt] = []
        for number in range(REQUESTS // 4):
            sandbox_id = asleep[number % len(asleep)]
            attempts += [
                lambda session: create_in(session, user, spec, limits),
                lambda session, id_=sandbox_id: resume_in(session, user, id_, limits),  # type: ignore[misc]
                lambda session, id_=sandbox_id: [str(start_in(session, user, limits, id_).task.id)],  # type: ignore[misc]
                start,
            ]
        counts = run_concurrently(database, attempts)
        assert counts.total() == REQUESTS
        assert len(find_desired(database, user, Desired.RUNNING)) == 5


class TestConcurrentRequests:
    def test_one_of_two_creates_takes_the_last_place(
        self, database: Database, user: ApiUser, spec: SandboxSpec
    ) -> None:
        limits = Quotas(running=1)

        def attempt(session: Session) -> bool:
            return rejected(lambda inner: create_in(inner, user, spec, limits), session)

        assert overlap(database, attempt, attempt) == (False, True)

    def test_resume_or_start_takes_the_last_place(self, database: Database, user: ApiUser, spec: SandboxSpec) -> None:
        limits, sandbox = Quotas(running=1), make_sandbox(database, user, status=Status.PAUSED)
        assert overlap(
            database,
            lambda session: rejected(lambda inner: resume_in(inner, user, sandbox.id, limits), session),
            lambda session: rejected(lambda inner: start_in(inner, user, limits), session),
        ) == (False, True)
        assert len(find_desired(database, user, Desired.RUNNING)) == 1

    def test_two_resumes_of_one_sandbox_take_one_place(self, database: Database, user: ApiUser) -> None:
        limits, sandbox = Quotas(running=1), make_sandbox(database, user, status=Status.PAUSED)

        def attempt(session: Session) -> bool:
            return rejected(lambda inner: resume_in(inner, user, sandbox.id, limits), session)

        assert overlap(database, attempt, attempt) == (False, False)

    def test_create_pauses_no_sandbox_with_a_start(self, database: Database, user: ApiUser, spec: SandboxSpec) -> None:
        limits, sandbox = Quotas(running=1, policy=PAUSING), make_sandbox(database, user)
        started, was_rejected = overlap(
            database,
            lambda session: start_in(session, user, limits, sandbox.id),
            lambda session: rejected(lambda inner: create_in(inner, user, spec, limits), session),
        )
        assert (started.sandbox is not None, was_rejected) == (True, True)
        assert [row.id for row in find_desired(database, user, Desired.RUNNING)] == [sandbox.id]

    def test_concurrently_deleted_sandbox_is_not_paused(
        self, database: Database, user: ApiUser, spec: SandboxSpec
    ) -> None:
        limits = Quotas(running=1, policy=PAUSING)
        sandbox = make_sandbox(database, user, created_at=OLD)

        def delete(session: Session) -> None:
            row = sandbox_queries.get(session, sandbox.id, user.id, lock=True)
            desired_state.set_desired(session, row, Desired.DELETED, due_at=now())

        _, paused = overlap(database, delete, lambda session: create_in(session, user, spec, limits))
        assert paused == []
        assert len(find_desired(database, user, Desired.RUNNING)) == 1


class TestCounting:
    def test_quotas_are_each_users_own(
        self, database: Database, user: ApiUser, other_user: ApiUser, spec: SandboxSpec
    ) -> None:
        limits = Quotas(1, 1, 1)
        for owner in (user, other_user):
            admit(database, lambda session, one=owner: create_in(session, one, spec, limits))  # type: ignore[misc]
            with pytest.raises(QuotaExceeded):
                admit(database, lambda session, one=owner: create_in(session, one, spec, limits))  # type: ignore[misc]

    def test_deleted_sandboxes_take_no_place(self, database: Database, user: ApiUser, spec: SandboxSpec) -> None:
        make_sandbox(database, user, desired=Desired.DELETED, created_at=OLD)
        make_sandbox(database, user, status=Status.DELETED, created_at=OLD)
        assert admit(database, lambda session: create_in(session, user, spec, Quotas(1, 1, 1))) == []
        assert len(find_desired(database, user, Desired.RUNNING)) == 1

    def test_stopped_sandbox_takes_a_place_and_does_not_run(
        self, database: Database, user: ApiUser, spec: SandboxSpec
    ) -> None:
        make_sandbox(database, user, status=Status.PAUSED, desired=Desired.STOPPED, created_at=OLD)
        with pytest.raises(QuotaExceeded):
            admit(database, lambda session: create_in(session, user, spec, Quotas(sandboxes=1)))
        admit(database, lambda session: create_in(session, user, spec, Quotas(running=1)))

    @pytest.mark.parametrize("status", [Status.STARTING, Status.RUNNING, Status.ERROR])
    def test_resume_of_a_running_sandbox_takes_no_place(
        self, database: Database, user: ApiUser, status: Status
    ) -> None:
        sandbox = make_sandbox(database, user, status=status)
        assert admit(database, lambda session: resume_in(session, user, sandbox.id, Quotas(running=1))) == []

    def test_deleted_sandboxes_count_for_a_minute(self, database: Database, user: ApiUser, spec: SandboxSpec) -> None:
        limits = Quotas(creates_per_minute=2)
        for seconds, status in ((70, Status.RUNNING), (40, Status.RUNNING), (10, Status.DELETED)):
            make_sandbox(database, user, status=status, created_at=now() - timedelta(seconds=seconds))
        with pytest.raises(QuotaExceeded) as caught:
            admit(database, lambda session: create_in(session, user, spec, limits))
        assert 15 <= caught.value.retry_seconds <= 20
        admit(database, lambda session: create_in(session, user, spec, Quotas(creates_per_minute=3)))

    def test_clock_set_back_blocks_no_creates(self, database: Database, user: ApiUser, spec: SandboxSpec) -> None:
        make_sandbox(database, user, created_at=now() + timedelta(hours=1))
        assert admit(database, lambda session: create_in(session, user, spec, Quotas(creates_per_minute=1))) == []


class TestPauseOldest:
    def test_oldest_sandboxes_above_the_limit_are_paused(
        self, database: Database, user: ApiUser, other_user: ApiUser, spec: SandboxSpec
    ) -> None:
        ids = [make_sandbox(database, user, created_at=OLD + timedelta(hours=number)).id for number in range(4)]
        make_sandbox(database, other_user, created_at=OLD)
        limits = Quotas(running=2, policy=PAUSING)
        assert admit(database, lambda session: create_in(session, user, spec, limits)) == ids[:3]
        assert {row.id for row in find_desired(database, user, Desired.PAUSED)} == set(ids[:3])
        assert len(find_desired(database, user, Desired.RUNNING)) == 2
        assert len(find_desired(database, other_user, Desired.RUNNING)) == 1

    def test_sandbox_of_a_start_is_not_paused(self, database: Database, user: ApiUser, spec: SandboxSpec) -> None:
        busy, idle = (make_sandbox(database, user, created_at=OLD + timedelta(hours=number)) for number in range(2))
        make_start_task(database, user, busy, stage=Stage.SETTING_UP_SKILLS)
        make_start_task(database, user, idle, stage=Stage.READY)
        limits = Quotas(running=2, policy=PAUSING)
        assert admit(database, lambda session: create_in(session, user, spec, limits)) == [idle.id]

    def test_create_is_rejected_if_a_conversation_starts_in_each_sandbox(
        self, database: Database, user: ApiUser, spec: SandboxSpec
    ) -> None:
        make_start_task(database, user, make_sandbox(database, user))
        limits = Quotas(running=1, policy=PAUSING)
        with pytest.raises(QuotaExceeded, match="being started"):
            admit(database, lambda session: create_in(session, user, spec, limits))

    def test_resume_pauses_another_sandbox(self, database: Database, user: ApiUser) -> None:
        asleep = make_sandbox(database, user, status=Status.PAUSED, created_at=OLD)
        awake = make_sandbox(database, user)
        limits = Quotas(running=1, policy=PAUSING)
        assert admit(database, lambda session: resume_in(session, user, asleep.id, limits)) == [awake.id]
        assert [row.id for row in find_desired(database, user, Desired.RUNNING)] == [asleep.id]

    def test_other_quotas_reject_despite_the_pause_policy(
        self, database: Database, user: ApiUser, spec: SandboxSpec
    ) -> None:
        make_sandbox(database, user)
        for limits in (Quotas(sandboxes=1, policy=PAUSING), Quotas(creates_per_minute=1, policy=PAUSING)):
            with pytest.raises(QuotaExceeded):
                admit(database, lambda session, one=limits: create_in(session, user, spec, one))  # type: ignore[misc]
        assert len(find_desired(database, user, Desired.RUNNING)) == 1


def test_rejected_start_writes_nothing(database: Database, user: ApiUser) -> None:
    make_sandbox(database, user)
    with pytest.raises(QuotaExceeded), database.transaction() as session:
        start_in(session, user, Quotas(running=1))
    with database.reading() as session:
        assert session.exec(select(StartTask)).all() == []


@pytest.mark.usefixtures("spec")
def test_users_without_quotas_are_not_locked(
    database: Database, user: ApiUser, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "lock_user", None)
    for sandbox_id in (None, sandbox.id):
        with database.transaction() as session:
            assert start_in(session, user, Quotas(), sandbox_id).paused == ()

"""Leases: one worker on a row, and no writes by a worker that has lost its lease."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from typing import Any

import pytest
from sqlmodel import Session, col

from shared.clock import after, now
from shared.db.database import Database
from shared.errors import LeaseLost
from shared.leasing import leases
from shared.leasing.limits import MAX_SECONDS
from shared.models import Conversation, Sandbox, StartTask
from tests.factories import ApiUser, make_conversation, make_sandbox, make_start_task
from tests.interleaving import overlap
from tests.rows import stored_row

A_WHILE = 10.0
PAST = timedelta(seconds=1)
EVERYTHING = col(Sandbox.id).is_not(None)


@pytest.fixture
def row(database: Database, user: ApiUser) -> Sandbox:
    """A sandbox that is due."""
    return make_sandbox(database, user, due_at=now() - PAST)


def claim(database: Database, row_id: str, owner: str = "w1", seconds: float = A_WHILE) -> Sandbox | None:
    with database.transaction() as session:
        return leases.claim(session, Sandbox, row_id, owner, seconds)


def claimed(database: Database, row_id: str, owner: str = "w1", seconds: float = A_WHILE) -> Sandbox:
    sandbox = claim(database, row_id, owner, seconds)
    assert sandbox is not None
    return sandbox


def dequeue(database: Database, **arguments: Any) -> list[str]:
    with database.transaction() as session:
        return dequeue_in(session, **arguments)


def dequeue_in(session: Session, **arguments: Any) -> list[str]:
    due = leases.find_due(session, Sandbox, EVERYTHING)
    return list(leases.dequeue_due(session, Sandbox, due, **({"again_at": after(A_WHILE)} | arguments)))


def test_claim_takes_a_row_that_is_due(database: Database, row: Sandbox) -> None:
    leased = claimed(database, row.id, "w1")
    stored = stored_row(database, Sandbox, row.id)
    assert (stored.lease_owner, stored.fence, stored.due_at) == ("w1", row.fence + 1, None)
    assert stored.lease_until is not None
    assert stored.lease_until > now()
    assert leased.fence == stored.fence


def test_claim_skips_a_row_that_is_not_due(database: Database, user: ApiUser) -> None:
    idle = make_sandbox(database, user)
    assert claim(database, idle.id) is None
    assert stored_row(database, Sandbox, idle.id).fence == idle.fence


def test_claim_of_an_unknown_row_is_none(database: Database) -> None:
    assert claim(database, "0" * 32) is None


def test_claim_skips_a_leased_row(database: Database, row: Sandbox) -> None:
    leased = claimed(database, row.id, "w1")
    with database.transaction() as session:
        leases.mark_due(session, Sandbox, row.id, now())
    assert claim(database, row.id, "w2") is None
    assert stored_row(database, Sandbox, row.id).fence == leased.fence


def test_two_claims_have_one_winner(database: Database, row: Sandbox) -> None:
    def by(owner: str) -> Callable[[Session], Sandbox | None]:
        return lambda session: leases.claim(session, Sandbox, row.id, owner, A_WHILE)

    first, second = overlap(database, by("w1"), by("w2"))
    assert first is not None
    assert second is None
    assert stored_row(database, Sandbox, row.id).lease_owner == "w1"


def test_concurrent_claims_have_one_winner(database: Database, row: Sandbox) -> None:
    start = Barrier(6)

    def attempt(number: int) -> Sandbox | None:
        start.wait(30)
        return claim(database, row.id, f"w{number}")

    with ThreadPoolExecutor(6) as pool:
        winners = [won for won in pool.map(attempt, range(6)) if won is not None]
    assert len(winners) == 1
    assert stored_row(database, Sandbox, row.id).fence == winners[0].fence == row.fence + 1


def test_expired_lease_is_taken_over(database: Database, row: Sandbox) -> None:
    old = claimed(database, row.id, "w1", seconds=-1)
    new = claimed(database, row.id, "w2")
    assert new.fence == old.fence + 1
    assert stored_row(database, Sandbox, row.id).lease_owner == "w2"


@pytest.mark.parametrize(
    "late",
    [
        lambda session, old: leases.write(session, Sandbox, old.id, old.fence, detail="late"),
        lambda session, old: leases.lock_leased(session, Sandbox, old.id, old.fence),
        lambda session, old: leases.release(session, Sandbox, old.id, old.fence),
        lambda session, old: leases.release(session, Sandbox, old.id, old.fence, now()),
    ],
    ids=["write", "hold", "release", "release with a retry"],
)
def test_stale_fence_writes_nothing(database: Database, row: Sandbox, late: Callable[[Session, Sandbox], None]) -> None:
    old = claimed(database, row.id, "w1", seconds=-1)
    claimed(database, row.id, "w2")
    before = stored_row(database, Sandbox, row.id).model_dump()
    with pytest.raises(LeaseLost), database.transaction() as session:
        late(session, old)
    assert stored_row(database, Sandbox, row.id).model_dump() == before


def test_late_write_after_a_concurrent_claim_raises(database: Database, row: Sandbox) -> None:
    old = claimed(database, row.id, "w1", seconds=-1)

    def take_over(session: Session) -> None:
        assert leases.claim(session, Sandbox, row.id, "w2", A_WHILE) is not None

    def write_late(session: Session) -> str:
        with pytest.raises(LeaseLost):
            leases.write(session, Sandbox, row.id, old.fence, detail="late")
        return "lost"

    assert overlap(database, take_over, write_late)[1] == "lost"
    assert stored_row(database, Sandbox, row.id).detail is None


def test_expired_lease_that_was_not_taken_over_still_writes(database: Database, row: Sandbox) -> None:
    leased = claimed(database, row.id, seconds=-1)
    with database.transaction() as session:
        leases.write(session, Sandbox, row.id, leased.fence, detail="slow but alone")
    assert stored_row(database, Sandbox, row.id).detail == "slow but alone"


def test_release_leaves_a_row_that_is_not_due(database: Database, row: Sandbox) -> None:
    leased = claimed(database, row.id)
    with database.transaction() as session:
        leases.release(session, Sandbox, row.id, leased.fence)
    stored = stored_row(database, Sandbox, row.id)
    assert (stored.lease_owner, stored.lease_until, stored.due_at) == (None, None, None)
    assert claim(database, row.id) is None


def test_release_requeues_the_row(database: Database, row: Sandbox) -> None:
    leased, retry_at = claimed(database, row.id), after(A_WHILE)
    with database.transaction() as session:
        leases.release(session, Sandbox, row.id, leased.fence, retry_at)
    assert stored_row(database, Sandbox, row.id).due_at == retry_at


@pytest.mark.parametrize("retry_in", [None, A_WHILE])
def test_release_keeps_a_due_time_of_the_lease(database: Database, row: Sandbox, retry_in: float | None) -> None:
    leased, due_at = claimed(database, row.id), now()
    with database.transaction() as session:
        leases.mark_due(session, Sandbox, row.id, due_at)
    with database.transaction() as session:
        leases.release(session, Sandbox, row.id, leased.fence, after(retry_in) if retry_in else None)
    assert stored_row(database, Sandbox, row.id).due_at == due_at
    assert claim(database, row.id, "w2") is not None


def test_release_keeps_a_due_time_written_concurrently(database: Database, row: Sandbox) -> None:
    leased, due_at = claimed(database, row.id), now()

    def mark_due(session: Session) -> None:
        leases.mark_due(session, Sandbox, row.id, due_at)

    def release(session: Session) -> None:
        leases.release(session, Sandbox, row.id, leased.fence, after(A_WHILE))

    overlap(database, mark_due, release)
    assert stored_row(database, Sandbox, row.id).due_at == due_at


def test_dequeue_takes_rows_that_are_due(database: Database, user: ApiUser, row: Sandbox) -> None:
    make_sandbox(database, user)
    make_sandbox(database, user, due_at=after(A_WHILE))
    again_at = after(A_WHILE)
    assert dequeue(database, again_at=again_at) == [row.id]
    assert stored_row(database, Sandbox, row.id).due_at == again_at
    assert dequeue(database) == []


def test_dequeue_repeats_a_row_that_was_not_claimed(database: Database, row: Sandbox) -> None:
    assert dequeue(database, again_at=now() - PAST) == [row.id]
    assert dequeue(database) == [row.id]
    assert dequeue(database) == []


def test_dequeue_skips_leased_rows(database: Database, row: Sandbox) -> None:
    claimed(database, row.id)
    with database.transaction() as session:
        leases.mark_due(session, Sandbox, row.id, now())
    assert dequeue(database) == []


def test_dequeue_takes_rows_of_a_dead_worker(database: Database, row: Sandbox) -> None:
    claimed(database, row.id, seconds=-1)
    assert dequeue(database) == [row.id]
    assert dequeue(database) == []
    assert claimed(database, row.id, "w2").lease_owner == "w2"


def test_dequeue_takes_a_due_row_of_a_dead_worker_until_it_is_claimed(database: Database, row: Sandbox) -> None:
    claimed(database, row.id, seconds=-1)
    with database.transaction() as session:
        leases.mark_due(session, Sandbox, row.id, now() - PAST)
    assert [dequeue(database, again_at=now() - PAST) for _ in range(2)] == [[row.id]] * 2


def test_dequeue_gives_a_row_to_one_of_two_callers(database: Database, row: Sandbox) -> None:
    assert overlap(database, dequeue_in, dequeue_in) == ([row.id], [])


def test_dequeue_gives_an_abandoned_row_to_one_of_two_callers(database: Database, row: Sandbox) -> None:
    claimed(database, row.id, seconds=-1)
    assert overlap(database, dequeue_in, dequeue_in) == ([row.id], [])


def test_dequeue_skips_a_row_that_is_claimed_concurrently(database: Database, row: Sandbox) -> None:
    def claim_it(session: Session) -> bool:
        return leases.claim(session, Sandbox, row.id, "w1", A_WHILE) is not None

    assert overlap(database, claim_it, dequeue_in) == (True, [])
    assert stored_row(database, Sandbox, row.id).due_at is None


def test_dequeue_skips_a_locked_row(database: Database, user: ApiUser, row: Sandbox) -> None:
    other = make_sandbox(database, user, due_at=now() - PAST)

    def write(session: Session) -> None:
        leases.mark_due(session, Sandbox, row.id, now() - PAST)

    taken = overlap(database, write, dequeue_in)[1]
    assert taken == [other.id] or (is_sqlite(database) and set(taken) == {row.id, other.id})
    assert set(dequeue(database)) == {row.id} - set(taken)


def test_find_due_returns_matching_rows_oldest_first_within_the_limit(
    database: Database, user: ApiUser, row: Sandbox
) -> None:
    ids = [make_sandbox(database, user, due_at=now() - PAST * days).id for days in (2, 4, 3)]
    with database.reading() as session:
        assert leases.find_due(session, Sandbox, EVERYTHING, limit=10) == [ids[1], ids[2], ids[0], row.id]
        assert leases.find_due(session, Sandbox, col(Sandbox.id) != ids[1], limit=2) == [ids[2], ids[0]]


def is_sqlite(database: Database) -> bool:
    return database.engine.dialect.name == "sqlite"


def test_start_tasks_and_conversations_are_leased_alike(database: Database, user: ApiUser, row: Sandbox) -> None:
    task = make_start_task(database, user)
    conversation = make_conversation(database, user, row, due_at=now())
    with database.transaction() as session:
        first = leases.claim(session, StartTask, task.id, "w1", A_WHILE)
        second = leases.claim(session, Conversation, conversation.id, "w1", A_WHILE)
    assert first is not None
    assert second is not None
    assert (first.fence, second.fence) == (1, 1)


class TestWrongClock:
    """Times written by a wrong clock lie further ahead than `FARTHEST`."""

    FAR = after(3600)  # far enough for tests that begin late

    def test_lease_far_ahead_is_expired(self, database: Database, user: ApiUser) -> None:
        row = make_sandbox(database, user, lease_owner="w0", lease_until=self.FAR)
        assert not leases.is_leased(row.lease_until)
        assert dequeue(database) == [row.id]
        claimed(database, row.id)

    def test_due_time_far_ahead_is_past(self, database: Database, user: ApiUser) -> None:
        row = make_sandbox(database, user, due_at=self.FAR)
        assert dequeue(database) == [row.id]

    def test_times_within_the_max_are_valid(self, database: Database, user: ApiUser) -> None:
        make_sandbox(database, user, due_at=after(MAX_SECONDS))
        row = make_sandbox(database, user, lease_owner="w0", lease_until=after(MAX_SECONDS))
        assert leases.is_leased(row.lease_until)
        assert dequeue(database) == []
        assert claim(database, row.id) is None

"""Leases: one hand on a row, and what becomes of the hand that was too slow."""

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
from shared.models import Conversation, Sandbox, StartTask
from tests.factories import Person, make_conversation, make_sandbox, make_start_task
from tests.interleaving import overlap
from tests.rows import stored_row

A_WHILE = 10.0
PAST = timedelta(seconds=1)
EVERYTHING = col(Sandbox.id).is_not(None)


@pytest.fixture
def row(database: Database, user: Person) -> Sandbox:
    """A sandbox that wants a hand."""
    return make_sandbox(database, user, due_at=now() - PAST)


def claim(database: Database, row_id: str, owner: str = "w1", seconds: float = A_WHILE) -> Sandbox | None:
    with database.transaction() as session:
        return leases.claim(session, Sandbox, row_id, owner, seconds)


def claimed(database: Database, row_id: str, owner: str = "w1", seconds: float = A_WHILE) -> Sandbox:
    sandbox = claim(database, row_id, owner, seconds)
    assert sandbox is not None
    return sandbox


def take(database: Database, **arguments: Any) -> list[str]:
    with database.transaction() as session:
        return take_in(session, **arguments)


def take_in(session: Session, **arguments: Any) -> list[str]:
    due = leases.find_due(session, Sandbox, EVERYTHING)
    return list(leases.dequeue_due(session, Sandbox, due, **({"again_at": after(A_WHILE)} | arguments)))


def test_claim_takes_a_row_that_is_due(database: Database, row: Sandbox) -> None:
    mine = claimed(database, row.id, "w1")
    stored = stored_row(database, Sandbox, row.id)
    assert (stored.lease_owner, stored.fence, stored.due_at) == ("w1", row.fence + 1, None)
    assert stored.lease_until is not None
    assert stored.lease_until > now()
    assert mine.fence == stored.fence


def test_claim_leaves_a_row_that_wants_nothing(database: Database, user: Person) -> None:
    quiet = make_sandbox(database, user)
    assert claim(database, quiet.id) is None
    assert stored_row(database, Sandbox, quiet.id).fence == quiet.fence


def test_claim_of_an_unknown_row_is_none(database: Database) -> None:
    assert claim(database, "0" * 32) is None


def test_claim_leaves_a_row_that_is_held(database: Database, row: Sandbox) -> None:
    held = claimed(database, row.id, "w1")
    with database.transaction() as session:
        leases.mark_due(session, Sandbox, row.id, now())
    assert claim(database, row.id, "w2") is None
    assert stored_row(database, Sandbox, row.id).fence == held.fence


def test_twin_claims_have_one_winner(database: Database, row: Sandbox) -> None:
    def by(owner: str) -> Callable[[Session], Sandbox | None]:
        return lambda session: leases.claim(session, Sandbox, row.id, owner, A_WHILE)

    first, second = overlap(database, by("w1"), by("w2"))
    assert first is not None
    assert second is None
    assert stored_row(database, Sandbox, row.id).lease_owner == "w1"


def test_many_claims_at_once_have_one_winner(database: Database, row: Sandbox) -> None:
    start = Barrier(6)

    def attempt(number: int) -> Sandbox | None:
        start.wait(30)
        return claim(database, row.id, f"w{number}")

    with ThreadPoolExecutor(6) as pool:
        winners = [won for won in pool.map(attempt, range(6)) if won is not None]
    assert len(winners) == 1
    assert stored_row(database, Sandbox, row.id).fence == winners[0].fence == row.fence + 1


def test_an_expired_lease_is_taken_over(database: Database, row: Sandbox) -> None:
    old = claimed(database, row.id, "w1", seconds=-1)
    new = claimed(database, row.id, "w2")
    assert new.fence == old.fence + 1
    assert stored_row(database, Sandbox, row.id).lease_owner == "w2"


@pytest.mark.parametrize(
    "late",
    [
        lambda session, old: leases.write(session, Sandbox, old.id, old.fence, detail="late"),
        lambda session, old: leases.hold(session, Sandbox, old.id, old.fence),
        lambda session, old: leases.release(session, Sandbox, old.id, old.fence),
        lambda session, old: leases.release(session, Sandbox, old.id, old.fence, now()),
    ],
    ids=["write", "hold", "release", "release with a retry"],
)
def test_the_old_fence_can_write_nothing(
    database: Database, row: Sandbox, late: Callable[[Session, Sandbox], None]
) -> None:
    old = claimed(database, row.id, "w1", seconds=-1)
    claimed(database, row.id, "w2")
    before = stored_row(database, Sandbox, row.id).model_dump()
    with pytest.raises(LeaseLost), database.transaction() as session:
        late(session, old)
    assert stored_row(database, Sandbox, row.id).model_dump() == before


def test_a_late_write_that_waits_for_the_new_owner_is_lost(database: Database, row: Sandbox) -> None:
    old = claimed(database, row.id, "w1", seconds=-1)

    def take_over(session: Session) -> None:
        assert leases.claim(session, Sandbox, row.id, "w2", A_WHILE) is not None

    def write_late(session: Session) -> str:
        with pytest.raises(LeaseLost):
            leases.write(session, Sandbox, row.id, old.fence, detail="late")
        return "lost"

    assert overlap(database, take_over, write_late)[1] == "lost"
    assert stored_row(database, Sandbox, row.id).detail is None


def test_an_expired_lease_nobody_took_over_still_writes(database: Database, row: Sandbox) -> None:
    mine = claimed(database, row.id, seconds=-1)
    with database.transaction() as session:
        leases.write(session, Sandbox, row.id, mine.fence, detail="slow but alone")
    assert stored_row(database, Sandbox, row.id).detail == "slow but alone"


def test_release_leaves_a_row_that_wants_nothing(database: Database, row: Sandbox) -> None:
    mine = claimed(database, row.id)
    with database.transaction() as session:
        leases.release(session, Sandbox, row.id, mine.fence)
    stored = stored_row(database, Sandbox, row.id)
    assert (stored.lease_owner, stored.lease_until, stored.due_at) == (None, None, None)
    assert claim(database, row.id) is None


def test_release_asks_for_another_look(database: Database, row: Sandbox) -> None:
    mine, retry_at = claimed(database, row.id), after(A_WHILE)
    with database.transaction() as session:
        leases.release(session, Sandbox, row.id, mine.fence, retry_at)
    assert stored_row(database, Sandbox, row.id).due_at == retry_at


@pytest.mark.parametrize("retry_in", [None, A_WHILE])
def test_release_keeps_what_was_asked_for_meanwhile(database: Database, row: Sandbox, retry_in: float | None) -> None:
    mine, asked = claimed(database, row.id), now()
    with database.transaction() as session:
        leases.mark_due(session, Sandbox, row.id, asked)
    with database.transaction() as session:
        leases.release(session, Sandbox, row.id, mine.fence, after(retry_in) if retry_in else None)
    assert stored_row(database, Sandbox, row.id).due_at == asked
    assert claim(database, row.id, "w2") is not None


def test_a_wish_that_comes_during_the_release_is_kept(database: Database, row: Sandbox) -> None:
    mine, asked = claimed(database, row.id), now()

    def ask(session: Session) -> None:
        leases.mark_due(session, Sandbox, row.id, asked)

    def let_go(session: Session) -> None:
        leases.release(session, Sandbox, row.id, mine.fence, after(A_WHILE))

    overlap(database, ask, let_go)
    assert stored_row(database, Sandbox, row.id).due_at == asked


def test_take_due_hands_out_what_is_due(database: Database, user: Person, row: Sandbox) -> None:
    make_sandbox(database, user)
    make_sandbox(database, user, due_at=after(A_WHILE))
    again_at = after(A_WHILE)
    assert take(database, again_at=again_at) == [row.id]
    assert stored_row(database, Sandbox, row.id).due_at == again_at
    assert take(database) == []


def test_take_due_hands_a_row_out_again_when_nobody_claimed_it(database: Database, row: Sandbox) -> None:
    assert take(database, again_at=now() - PAST) == [row.id]
    assert take(database) == [row.id]
    assert take(database) == []


def test_take_due_leaves_rows_that_are_held(database: Database, row: Sandbox) -> None:
    claimed(database, row.id)
    with database.transaction() as session:
        leases.mark_due(session, Sandbox, row.id, now())
    assert take(database) == []


def test_take_due_finds_rows_whose_holder_died(database: Database, row: Sandbox) -> None:
    claimed(database, row.id, seconds=-1)
    assert take(database) == [row.id]
    assert take(database) == []
    assert claimed(database, row.id, "w2").lease_owner == "w2"


def test_take_due_gives_a_row_to_one_of_two_callers(database: Database, row: Sandbox) -> None:
    assert overlap(database, take_in, take_in) == ([row.id], [])


def test_take_due_gives_an_abandoned_row_to_one_of_two_callers(database: Database, row: Sandbox) -> None:
    claimed(database, row.id, seconds=-1)
    assert overlap(database, take_in, take_in) == ([row.id], [])


def test_take_due_leaves_a_row_that_is_claimed_meanwhile(database: Database, row: Sandbox) -> None:
    def claim_it(session: Session) -> bool:
        return leases.claim(session, Sandbox, row.id, "w1", A_WHILE) is not None

    assert overlap(database, claim_it, take_in) == (True, [])
    assert stored_row(database, Sandbox, row.id).due_at is None


def test_take_due_leaves_a_row_that_somebody_has_locked(database: Database, user: Person, row: Sandbox) -> None:
    other = make_sandbox(database, user, due_at=now() - PAST)

    def write(session: Session) -> None:
        leases.mark_due(session, Sandbox, row.id, now() - PAST)

    taken = overlap(database, write, take_in)[1]
    assert taken == [other.id] or (is_sqlite(database) and set(taken) == {row.id, other.id})
    assert set(take(database)) == {row.id} - set(taken)


def test_find_due_keeps_to_its_condition_and_limit_and_begins_with_the_oldest(
    database: Database, user: Person, row: Sandbox
) -> None:
    ids = [make_sandbox(database, user, due_at=now() - PAST * days).id for days in (2, 4, 3)]
    with database.reading() as session:
        assert leases.find_due(session, Sandbox, EVERYTHING, limit=10) == [ids[1], ids[2], ids[0], row.id]
        assert leases.find_due(session, Sandbox, col(Sandbox.id) != ids[1], limit=2) == [ids[2], ids[0]]


def is_sqlite(database: Database) -> bool:
    return database.engine.dialect.name == "sqlite"


def test_start_tasks_and_conversations_are_leased_alike(database: Database, user: Person, row: Sandbox) -> None:
    task = make_start_task(database, user)
    conversation = make_conversation(database, user, row, due_at=now())
    with database.transaction() as session:
        first = leases.claim(session, StartTask, task.id, "w1", A_WHILE)
        second = leases.claim(session, Conversation, conversation.id, "w1", A_WHILE)
    assert first is not None
    assert second is not None
    assert (first.fence, second.fence) == (1, 1)


class TestWrongClock:
    """What it has written lies further ahead than anybody honestly sets a time."""

    FAR = after(3600)  # far enough for tests that begin late

    def test_lease_is_free(self, database: Database, user: Person) -> None:
        row = make_sandbox(database, user, lease_owner="w0", lease_until=self.FAR)
        assert not leases.is_held(row.lease_until)
        assert take(database) == [row.id]
        claimed(database, row.id)

    def test_row_is_due(self, database: Database, user: Person) -> None:
        row = make_sandbox(database, user, due_at=self.FAR)
        assert take(database) == [row.id]

    def test_honest_times_are_believed(self, database: Database, user: Person) -> None:
        make_sandbox(database, user, due_at=after(leases.MAX_SECONDS))
        row = make_sandbox(database, user, lease_owner="w0", lease_until=after(leases.MAX_SECONDS))
        assert leases.is_held(row.lease_until)
        assert take(database) == []
        assert claim(database, row.id) is None

"""The keeper renews what is held and nothing else."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy.exc import OperationalError
from sqlmodel import Session

from shared import leases
from shared.clock import now
from shared.database import Database
from shared.models import Sandbox
from tests.factories import Person, make_sandbox
from worker.keeper import STALL_SECONDS, LeaseKeeper

HOUR = timedelta(hours=1)


@pytest.fixture
def keeper(database: Database) -> LeaseKeeper:
    """Its leases are an hour long, those it is given here a minute."""
    return LeaseKeeper(database, "worker-1", HOUR.total_seconds())


@pytest.fixture
def sandbox_id(database: Database, user: Person) -> str:
    return make_sandbox(database, user).id


def claim(database: Database, sandbox_id: str, owner: str = "worker-1") -> Sandbox:
    with database.transaction() as session:
        leases.mark_due(session, Sandbox, sandbox_id, now())
        session.flush()
        row = session.get_one(Sandbox, sandbox_id)
        row.lease_until = None
        session.flush()
        claimed = leases.claim(session, Sandbox, sandbox_id, owner, 60)
    assert claimed
    return claimed


def is_renewed(database: Database, sandbox_id: str) -> bool:
    with database.reading() as session:
        until = session.get_one(Sandbox, sandbox_id).lease_until
    assert until
    return until > now() + HOUR / 2


def test_held_lease_is_renewed(database: Database, keeper: LeaseKeeper, sandbox_id: str) -> None:
    with keeper.holding(Sandbox, claim(database, sandbox_id)):
        assert not is_renewed(database, sandbox_id)
        keeper.renew_all()
        assert is_renewed(database, sandbox_id)


def test_lease_that_was_let_go_is_not(database: Database, keeper: LeaseKeeper, sandbox_id: str) -> None:
    with keeper.holding(Sandbox, claim(database, sandbox_id)):
        pass
    keeper.renew_all()
    assert not is_renewed(database, sandbox_id)


def test_row_that_is_let_go_meanwhile_stays_free(database: Database, keeper: LeaseKeeper, sandbox_id: str) -> None:
    """Else it would be held by nobody for the length of a lease, and a wish would have to wait so long."""
    row = claim(database, sandbox_id)
    with keeper.holding(Sandbox, row):
        with database.transaction() as session:
            leases.release(session, Sandbox, row.id, row.fence)
        keeper.renew_all()
    with database.reading() as session:
        assert session.get_one(Sandbox, sandbox_id).lease_until is None


def test_lease_is_let_go_when_the_work_fails(database: Database, keeper: LeaseKeeper, sandbox_id: str) -> None:
    with pytest.raises(RuntimeError), keeper.holding(Sandbox, claim(database, sandbox_id)):
        raise RuntimeError
    keeper.renew_all()
    assert not is_renewed(database, sandbox_id)


def test_lease_of_a_holder_without_progress_ends(
    database: Database, keeper: LeaseKeeper, sandbox_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 1000.0
    monkeypatch.setattr("worker.keeper.monotonic", lambda: seconds)
    row = claim(database, sandbox_id)
    with keeper.holding(Sandbox, row):
        seconds += STALL_SECONDS
        keeper.mark_progress(Sandbox, row)
        seconds += STALL_SECONDS
        keeper.renew_all()
        assert is_renewed(database, sandbox_id)
        seconds += 1
        keeper.renew_all()
        assert keeper._held == {}


def test_lost_lease_is_dropped(database: Database, keeper: LeaseKeeper, sandbox_id: str) -> None:
    with keeper.holding(Sandbox, claim(database, sandbox_id)):
        claim(database, sandbox_id, "worker-2")
        keeper.renew_all()
        assert not is_renewed(database, sandbox_id)
        assert keeper._held == {}


def test_claim_that_follows_a_lost_one_in_the_same_process_is_kept(
    database: Database, keeper: LeaseKeeper, sandbox_id: str
) -> None:
    earlier = keeper.holding(Sandbox, claim(database, sandbox_id))
    earlier.__enter__()
    with keeper.holding(Sandbox, claim(database, sandbox_id)):
        earlier.__exit__(None, None, None)
        keeper.renew_all()
        assert is_renewed(database, sandbox_id)


def test_database_that_is_away_ends_neither_the_keeper_nor_the_lease(
    database: Database, user: Person, sandbox_id: str
) -> None:
    flaky = Flaky(database, failures=1)
    keeper = LeaseKeeper(flaky, "worker-1", HOUR.total_seconds())
    other_id = make_sandbox(database, user).id
    with keeper.holding(Sandbox, claim(database, sandbox_id)), keeper.holding(Sandbox, claim(database, other_id)):
        keeper.renew_all()
        assert [is_renewed(database, row_id) for row_id in (sandbox_id, other_id)] == [False, False]
        keeper.renew_all()
        assert [is_renewed(database, row_id) for row_id in (sandbox_id, other_id)] == [True, True]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_locked_row_keeps_its_lease_and_the_others_theirs(
    database: Database, user: Person, keeper: LeaseKeeper, sandbox_id: str
) -> None:
    other_id = make_sandbox(database, user).id
    with keeper.holding(Sandbox, claim(database, sandbox_id)), keeper.holding(Sandbox, claim(database, other_id)):
        with database.transaction() as foreign:
            foreign.get_one(Sandbox, sandbox_id, with_for_update=True)
            keeper.renew_all()
            assert is_renewed(database, other_id)
        assert not is_renewed(database, sandbox_id)
        keeper.renew_all()
        assert is_renewed(database, sandbox_id)


class Flaky(Database):
    """A database whose first transactions fail."""

    def __init__(self, database: Database, failures: int) -> None:
        self._database, self._failures = database, failures

    @contextmanager
    def transaction(self, *, needs_place: bool = False) -> Iterator[Session]:
        if self._failures > 0:
            self._failures -= 1
            raise OperationalError("BEGIN", {}, RuntimeError("the connection broke"))
        with self._database.transaction(needs_place=needs_place) as session:
            yield session

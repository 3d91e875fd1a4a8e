"""The lease renewer renews held leases and no others."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy.exc import OperationalError
from sqlmodel import Session

from shared.clock import now
from shared.db.database import Database
from shared.leasing import leases
from shared.models import Sandbox
from tests.factories import ApiUser, make_sandbox
from worker.lease_renewer import MAX_RUN_SECONDS, STALL_SECONDS, LeaseRenewer

HOUR = timedelta(hours=1)


@pytest.fixture
def renewer(database: Database) -> LeaseRenewer:
    """A renewer that renews leases for an hour. The tests claim them for a minute."""
    return LeaseRenewer(database, "worker-1", HOUR.total_seconds())


@pytest.fixture
def sandbox_id(database: Database, user: ApiUser) -> str:
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


def test_held_lease_is_renewed(database: Database, renewer: LeaseRenewer, sandbox_id: str) -> None:
    with renewer.holding(Sandbox, claim(database, sandbox_id)):
        assert not is_renewed(database, sandbox_id)
        renewer.renew_all()
        assert is_renewed(database, sandbox_id)


def test_released_lease_is_not_renewed(database: Database, renewer: LeaseRenewer, sandbox_id: str) -> None:
    with renewer.holding(Sandbox, claim(database, sandbox_id)):
        pass
    renewer.renew_all()
    assert not is_renewed(database, sandbox_id)


def test_row_released_during_the_renewal_stays_free(database: Database, renewer: LeaseRenewer, sandbox_id: str) -> None:
    """Else the row would be leased without a worker, and a new desired state would wait for the lease's end."""
    row = claim(database, sandbox_id)
    with renewer.holding(Sandbox, row):
        with database.transaction() as session:
            leases.release(session, Sandbox, row.id, row.fence)
        renewer.renew_all()
    with database.reading() as session:
        assert session.get_one(Sandbox, sandbox_id).lease_until is None


def test_lease_is_dropped_when_the_work_fails(database: Database, renewer: LeaseRenewer, sandbox_id: str) -> None:
    with pytest.raises(RuntimeError), renewer.holding(Sandbox, claim(database, sandbox_id)):
        raise RuntimeError
    renewer.renew_all()
    assert not is_renewed(database, sandbox_id)


def test_lease_of_a_holder_without_progress_ends(
    database: Database, renewer: LeaseRenewer, sandbox_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 1000.0
    monkeypatch.setattr("worker.lease_renewer.monotonic", lambda: seconds)
    row = claim(database, sandbox_id)
    with renewer.holding(Sandbox, row):
        seconds += STALL_SECONDS
        renewer.mark_progress(Sandbox, row)
        seconds += STALL_SECONDS
        renewer.renew_all()
        assert is_renewed(database, sandbox_id)
        seconds += 1
        renewer.renew_all()
        assert renewer._held == {}


def test_run_that_makes_progress_for_too_long_loses_its_lease(
    database: Database, renewer: LeaseRenewer, sandbox_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [0.0]
    monkeypatch.setattr("worker.lease_renewer.monotonic", lambda: seconds[0])
    row = claim(database, sandbox_id)
    with renewer.holding(Sandbox, row):
        for seconds[0], is_leased in ((MAX_RUN_SECONDS, True), (MAX_RUN_SECONDS + STALL_SECONDS + 1, False)):
            renewer.mark_progress(Sandbox, row)
            renewer.renew_all()
            assert bool(renewer._held) is is_leased


def test_lost_lease_is_dropped(database: Database, renewer: LeaseRenewer, sandbox_id: str) -> None:
    with renewer.holding(Sandbox, claim(database, sandbox_id)):
        claim(database, sandbox_id, "worker-2")
        renewer.renew_all()
        assert not is_renewed(database, sandbox_id)
        assert renewer._held == {}


def test_new_claim_after_a_lost_lease_in_the_same_process_is_kept(
    database: Database, renewer: LeaseRenewer, sandbox_id: str
) -> None:
    earlier = renewer.holding(Sandbox, claim(database, sandbox_id))
    earlier.__enter__()
    with renewer.holding(Sandbox, claim(database, sandbox_id)):
        earlier.__exit__(None, None, None)
        renewer.renew_all()
        assert is_renewed(database, sandbox_id)


def test_unavailable_database_stops_neither_the_renewer_nor_the_lease(
    database: Database, user: ApiUser, sandbox_id: str
) -> None:
    flaky = Flaky(database, failures=1)
    renewer = LeaseRenewer(flaky, "worker-1", HOUR.total_seconds())
    other_id = make_sandbox(database, user).id
    with renewer.holding(Sandbox, claim(database, sandbox_id)), renewer.holding(Sandbox, claim(database, other_id)):
        renewer.renew_all()
        assert [is_renewed(database, row_id) for row_id in (sandbox_id, other_id)] == [False, False]
        renewer.renew_all()
        assert [is_renewed(database, row_id) for row_id in (sandbox_id, other_id)] == [True, True]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_locked_row_keeps_its_lease_and_other_leases_are_renewed(
    database: Database, user: ApiUser, renewer: LeaseRenewer, sandbox_id: str
) -> None:
    other_id = make_sandbox(database, user).id
    with renewer.holding(Sandbox, claim(database, sandbox_id)), renewer.holding(Sandbox, claim(database, other_id)):
        with database.transaction() as foreign:
            foreign.get_one(Sandbox, sandbox_id, with_for_update=True)
            renewer.renew_all()
            assert is_renewed(database, other_id)
        assert not is_renewed(database, sandbox_id)
        renewer.renew_all()
        assert is_renewed(database, sandbox_id)


class Flaky(Database):
    """Database whose first transactions fail."""

    def __init__(self, database: Database, failures: int) -> None:
        self._database, self._failures = database, failures

    @contextmanager
    def transaction(self, *, may_place: bool = False) -> Iterator[Session]:
        if self._failures > 0:
            self._failures -= 1
            raise OperationalError("BEGIN", {}, RuntimeError("the connection broke"))
        with self._database.transaction(may_place=may_place) as session:
            yield session

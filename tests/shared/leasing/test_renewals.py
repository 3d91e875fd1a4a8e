"""Renewal of many leases: each by its own fence, without delaying the others."""

import pytest
from sqlmodel import Session, col, insert, select

from shared.clock import now
from shared.db.database import Database
from shared.ids import new_id
from shared.leasing import leases, renewals
from shared.leasing.renewals import UnrenewedLeases
from shared.models import Sandbox
from tests.factories import ApiUser, make_sandbox
from tests.interleaving import overlap
from tests.rows import stored_row

A_WHILE = 60.0


@pytest.fixture
def rows(database: Database, user: ApiUser) -> list[Sandbox]:
    """Sandboxes with expired leases that no worker has taken over."""
    return [claimed(database, make_sandbox(database, user, due_at=now()).id) for _ in range(5)]


def claimed(database: Database, row_id: str, seconds: float = -1.0) -> Sandbox:
    with database.transaction() as session:
        row = leases.claim(session, Sandbox, row_id, "w1", seconds)
    assert row is not None
    return row


def renew_in(session: Session, rows: list[Sandbox]) -> UnrenewedLeases:
    return renewals.renew(session, Sandbox, {row.id: row.fence for row in rows}, A_WHILE)


def renew(database: Database, rows: list[Sandbox]) -> UnrenewedLeases:
    with database.transaction() as session:
        return renew_in(session, rows)


def is_leased(database: Database, row: Sandbox) -> bool:
    return (stored_row(database, Sandbox, row.id).lease_until or now()) > now()


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_all_leases_are_renewed(database: Database, rows: list[Sandbox], number: int) -> None:
    assert renew(database, rows[:number]) == UnrenewedLeases()
    assert [is_leased(database, row) for row in rows] == [place < number for place in range(5)]


def test_all_leases_of_a_large_node_are_renewed(database: Database, user: ApiUser) -> None:
    """More than fit into one statement of SQLite."""
    first = claimed(database, make_sandbox(database, user, due_at=now()).id).model_dump()
    ids = [new_id() for _ in range(600)]
    with database.transaction() as session:
        session.execute(insert(Sandbox), [first | {"id": row_id, "session_key_digest": row_id} for row_id in ids])
    fences = dict.fromkeys(ids, first["fence"])
    with database.transaction() as session:
        unrenewed = renewals.renew(session, Sandbox, fences | {ids[0]: first["fence"] + 1}, A_WHILE)
    assert unrenewed == UnrenewedLeases(lost={ids[0]})
    with database.reading() as session:
        leased = session.scalars(select(col(Sandbox.id)).where(col(Sandbox.lease_until) > now())).all()
    assert set(leased) == set(ids[1:])


def test_lease_that_another_worker_took_over_is_lost(database: Database, rows: list[Sandbox]) -> None:
    newer = claimed(database, rows[0].id)
    assert renew(database, rows) == UnrenewedLeases(lost={newer.id})
    assert not is_leased(database, newer)
    assert all(is_leased(database, row) for row in rows[1:])


def test_released_lease_is_lost_and_stays_free(database: Database, rows: list[Sandbox]) -> None:
    with database.transaction() as session:
        leases.release(session, Sandbox, rows[0].id, rows[0].fence)
    assert renew(database, rows) == UnrenewedLeases(lost={rows[0].id})
    assert stored_row(database, Sandbox, rows[0].id).lease_until is None


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_locked_row_does_not_prevent_other_renewals(database: Database, rows: list[Sandbox]) -> None:
    def write(session: Session) -> None:
        leases.mark_due(session, Sandbox, rows[2].id, now())

    assert overlap(database, write, lambda session: renew_in(session, rows))[1] == UnrenewedLeases(locked={rows[2].id})
    assert [is_leased(database, row) for row in rows] == [True, True, False, True, True]
    assert renew(database, rows) == UnrenewedLeases()

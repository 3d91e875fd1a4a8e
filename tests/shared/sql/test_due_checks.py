"""Checks whether work is due: by the times in rows, and by the present."""

from datetime import timedelta
from typing import Any

import pytest
from sqlmodel import col

from shared.clock import after, now
from shared.db.database import Database
from shared.leasing import leases
from shared.models import Sandbox
from shared.nodes import placement
from shared.sql.due_checks import find_due, when_passed, while_exists
from shared.states import Desired, Status
from shared.warm_pool import pool as warm_pool
from tests.due_checks import is_due
from tests.factories import NODE_ID, ApiUser, make_sandbox, make_spec

DAY = timedelta(days=1)


def test_work_is_due_after_the_delay_from_the_earliest_time(database: Database, user: ApiUser) -> None:
    check = when_passed(col(Sandbox.deadline_at), delay=DAY)
    for at, expected in ((None, False), (now() - DAY / 2, False), (now() - DAY, True), (after(60), True)):
        make_sandbox(database, user, deadline_at=at)
        with database.reading() as session:
            assert is_due(session, check) == expected


def test_work_is_due_while_a_row_exists(database: Database, user: ApiUser) -> None:
    check = while_exists(Sandbox.id, Sandbox.desired == Desired.PAUSED)
    for desired, expected in ((Desired.RUNNING, False), (Desired.PAUSED, True)):
        make_sandbox(database, user, desired=desired)
        with database.reading() as session:
            assert is_due(session, check) == expected


def test_each_kind_of_due_work_is_found_once_and_in_order(database: Database, user: ApiUser) -> None:
    make_sandbox(database, user)
    exists, never = while_exists(Sandbox.id), when_passed(Sandbox.deadline_at)
    work = {"last": [never, exists], "not due": [never], "first": [exists, exists]}
    assert find_due(database.fetch, work) == ["last", "first"]


@pytest.mark.parametrize("column", ["due_at", "lease_until"])
@pytest.mark.parametrize(("seconds", "expected"), [(-0.1, True), (10, False), (60, True)])
def test_rows_are_due_when_their_time_has_passed_or_is_from_a_wrong_clock(
    database: Database, user: ApiUser, column: str, seconds: float, expected: bool
) -> None:
    for at in (None, after(5), after(seconds), after(15)):
        columns: dict[str, Any] = {column: at}
        make_sandbox(database, user, **columns)
    with database.reading() as session:
        assert is_due(session, *leases.DUE) == expected


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"node_id": NODE_ID}, False),
        ({}, True),
        ({"generation": 2, "desired": Desired.DELETED}, True),
        ({"generation": 2, "desired": Desired.PAUSED}, True),
        ({"desired": Desired.PAUSED}, False),
        ({"desired": Desired.DELETED, "status": Status.DELETED}, False),
    ],
)
def test_sandbox_without_a_node_is_due_until_it_is_paused_or_deleted(
    database: Database, user: ApiUser, columns: dict[str, Any], expected: bool
) -> None:
    make_sandbox(database, user, **({"node_id": None} | columns))
    with database.reading() as session:
        assert is_due(session, placement.UNPLACED) == expected


@pytest.mark.parametrize(("target", "is_warm", "expected"), [(0, False, False), (1, False, True), (0, True, True)])
def test_pool_is_in_use_if_it_has_a_target_or_a_sandbox(
    database: Database, user: ApiUser, target: int, is_warm: bool, expected: bool
) -> None:
    make_spec(database, warm_target=target)
    columns: dict[str, Any] = {"owner_id": None} if is_warm else {}
    make_sandbox(database, user, **columns)
    with database.reading() as session:
        assert is_due(session, *warm_pool.IN_USE) == expected

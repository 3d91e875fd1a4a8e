"""Desired state in one statement: the same rows as in a transaction, with the deadlines that `refresh` computes."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import product
from typing import Any

import pytest
from sqlmodel import Session, col, select

from shared.changes.recorder import Change, Kind
from shared.clock import after, now
from shared.db.database import Database
from shared.errors import NotFound
from shared.models import ChangeEntry, Sandbox
from shared.sandboxes import deadlines, desired_state
from shared.sandboxes.desired_state import DesiredStateResult
from shared.states import Desired, Status
from tests import effort
from tests.factories import ApiUser, make_sandbox, make_spec, make_user
from tests.interleaving import overlap
from tests.rows import as_stored

# The columns that differ between two calls.
TIMES = {"updated_at", "last_active_at", "due_at"}
CREATED = now() - timedelta(minutes=5)
OWN = {"id", "session_key", "session_key_digest", *TIMES}
CHAIN: dict[str, Any] = {"freeze_after_seconds": 60, "stop_after_seconds": 600, "delete_after_seconds": 6000}
AGES = pytest.mark.parametrize("age", [None, 3600], ids=["ageless", "aged"])
STATES = list(product(Desired, Status))
# For a change: each pair of states once, and each state both with and without a max age. At night: all cases.
CHOSEN = [
    (desired, status, [None, 3600][(number + number // len(Status)) % 2])
    for number, (desired, status) in enumerate(STATES)
]
ALL = [(*states, age) for states in STATES for age in (None, 3600)]
CASES = pytest.mark.parametrize(("desired", "status", "age"), effort.choose(quick=CHOSEN, change=CHOSEN, thorough=ALL))


def set_and_commit(database: Database, sandbox: Sandbox, desired: Desired) -> DesiredStateResult:
    return desired_state.set_desired_and_commit(database, sandbox.id, str(sandbox.owner_id), desired, due_at=after(5))


def in_transaction(database: Database, sandbox: Sandbox, desired: Desired) -> None:
    with database.transaction() as session:
        set_desired(session, sandbox, desired)


def set_desired(session: Session, sandbox: Sandbox, desired: Desired) -> None:
    desired_state.set_desired(session, session.get_one(Sandbox, sandbox.id), desired, due_at=after(5))


def make(database: Database, owner: ApiUser, *, age: int | None, **columns: Any) -> Sandbox:
    """A sandbox with the deadline of its state, if that has one."""
    make_spec(database, **CHAIN)
    times = dict.fromkeys(("created_at", "status_changed_at", "last_active_at", "updated_at", "ready_at"), CREATED)
    defaults = {"desired": Desired.RUNNING, "max_age_seconds": age}
    sandbox = make_sandbox(database, owner, **(times | defaults | columns))
    with database.transaction() as session:
        deadlines.refresh(session, sandbox.id)
    return as_stored(database, sandbox)


def written(row: Sandbox) -> dict[str, Any]:
    found = {name: value for name, value in row.model_dump().items() if name not in OWN}
    return found | {f"{name} is new": getattr(row, name) > row.created_at for name in TIMES}


def logged(database: Database, sandbox: Sandbox) -> list[str | None]:
    with database.reading() as session:
        mine = select(ChangeEntry.status).where(ChangeEntry.row_id == sandbox.id)
        return list(session.exec(mine.order_by(col(ChangeEntry.number))).all())


@CASES
def test_one_statement_writes_the_same_as_a_transaction(
    database: Database, user: ApiUser, desired: Desired, status: Status, age: int | None
) -> None:
    one, other = (make(database, user, age=age, status=status) for _ in range(2))
    result = set_and_commit(database, one, desired)
    in_transaction(database, other, desired)
    rows = as_stored(database, one), as_stored(database, other)
    assert written(rows[0]) == written(rows[1])
    assert (result.id, result.node_id, result.generation) == (one.id, one.node_id, 2)
    assert logged(database, one)[-1] == logged(database, other)[-1] == result.shown


@CASES
def test_deadline_is_the_one_that_refresh_computes(
    database: Database, user: ApiUser, desired: Desired, status: Status, age: int | None
) -> None:
    sandbox = make(database, user, age=age, status=status)
    in_transaction(database, sandbox, desired)
    stored = as_stored(database, sandbox)
    with database.transaction() as session:
        deadlines.refresh(session, sandbox.id)
    assert as_stored(database, sandbox) == stored


@AGES
@pytest.mark.parametrize("status", [Status.STARTING, Status.RUNNING, Status.PAUSED])
def test_deadline_of_a_bumped_generation_is_the_one_that_refresh_computes(
    database: Database, user: ApiUser, status: Status, age: int | None
) -> None:
    sandbox = make(database, user, age=age, status=status)
    with database.transaction() as session:
        assert desired_state.bump_generation(session, sandbox.id, due_at=after(5))
    stored = as_stored(database, sandbox)
    with database.transaction() as session:
        deadlines.refresh(session, sandbox.id)
    assert as_stored(database, sandbox) == stored


@pytest.mark.parametrize("desired", Desired)
def test_foreign_and_deleted_sandboxes_are_not_found(database: Database, user: ApiUser, desired: Desired) -> None:
    foreign = make(database, make_user(database, "bob"), age=None)
    deleted = make(database, user, age=None, desired=Desired.DELETED)
    for sandbox_id in (foreign.id, deleted.id, "nothing"):
        with pytest.raises(NotFound):
            desired_state.set_desired_and_commit(database, sandbox_id, user.id, desired, due_at=after(5))
    assert [as_stored(database, row).generation for row in (foreign, deleted)] == [1, 1]
    assert logged(database, foreign) == logged(database, deleted) == []


def test_concurrent_calls_each_start_a_generation(database: Database, user: ApiUser) -> None:
    sandboxes = [make(database, user, age=None) for _ in range(2)]
    acts = [partial(set_and_commit, database, row, Desired.PAUSED) for row in sandboxes for _ in range(10)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda act: act(), acts))
    assert sorted(result.generation for result in found) == sorted([*range(2, 12)] * 2)
    with database.reading() as session:
        numbers = session.exec(select(ChangeEntry.number).order_by(col(ChangeEntry.number))).all()
    assert list(numbers) == list(range(1, 21))


def test_pause_after_a_deletion_is_not_found(database: Database, user: ApiUser) -> None:
    sandbox = make(database, user, age=None)

    def pause(_: Session) -> str:
        with pytest.raises(NotFound):
            set_and_commit(database, sandbox, Desired.PAUSED)
        return "not found"

    assert overlap(database, lambda session: set_desired(session, sandbox, Desired.DELETED), pause)[1] == "not found"


def test_change_is_published(database: Database, user: ApiUser, published: Callable[[], list[Change]]) -> None:
    sandbox = make(database, user, age=None)
    published().clear()
    set_and_commit(database, sandbox, Desired.DELETED)
    assert published() == [Change(user.id, Kind.SANDBOX, sandbox.id, Status.DELETING)]


@pytest.fixture
def published(database: Database, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Change]]:
    """The published changes."""
    found: list[Change] = []
    monkeypatch.setattr(database, "_publish", found.extend)
    return lambda: found

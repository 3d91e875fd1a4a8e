"""Desired states written by owners, and the sandboxes that owners can read."""

import re
from collections.abc import Callable

import pytest
from sqlmodel import Session, select

from shared.clock import after, now
from shared.conversations import start_tasks
from shared.db.database import Database
from shared.errors import Invalid, LeaseLost, NotFound
from shared.leasing import leases
from shared.models import Sandbox, StartTask
from shared.sandboxes import desired_state, quarantine
from shared.sandboxes import lists as sandbox_lists
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes import status as sandbox_status
from shared.sandboxes.status import ObservedState
from shared.states import Desired, Stage, Status
from tests import effort
from tests.factories import VAULT, ApiUser, make_sandbox, make_start_task, session_key_of
from tests.interleaving import overlap
from tests.rows import as_stored
from tests.services.directories import REPOSITORY


def set_desired(session: Session, sandbox: Sandbox, desired: Desired) -> None:
    desired_state.set_desired(session, session.get_one(Sandbox, sandbox.id), desired, due_at=now())


# For a change, all combinations are in `test_concurrent_desired_states`.
@pytest.mark.parametrize(("desired", "status"), effort.covering(list(Desired), list(Status)))
def test_set_desired_leaves_the_observed_state(
    database: Database, user: ApiUser, status: Status, desired: Desired
) -> None:
    sandbox, due_at = make_sandbox(database, user, status=status, desired=Desired.RUNNING), after(5)
    with database.transaction() as session:
        row = session.get_one(Sandbox, sandbox.id)
        desired_state.set_desired(session, row, desired, due_at=due_at)
        assert (row.desired, row.generation) == (desired, 2)
    stored = as_stored(database, sandbox)
    assert (stored.desired, stored.generation, stored.due_at) == (desired, 2, due_at)
    assert (stored.status, stored.observed_generation) == (status, sandbox.observed_generation)


@pytest.mark.parametrize("desired", Desired)
def test_deleted_sandbox_takes_no_desired_state(database: Database, user: ApiUser, desired: Desired) -> None:
    sandbox = make_sandbox(database, user, desired=Desired.DELETED)
    with pytest.raises(NotFound), database.transaction() as session:
        set_desired(session, sandbox, desired)
    assert as_stored(database, sandbox).generation == 1


def test_pause_after_a_concurrent_deletion_is_not_found(database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user)

    def delete(session: Session) -> None:
        set_desired(session, sandbox, Desired.DELETED)

    def pause(session: Session) -> str:
        with pytest.raises(NotFound):
            set_desired(session, sandbox, Desired.PAUSED)
        return "not found"

    assert overlap(database, delete, pause)[1] == "not found"
    assert as_stored(database, sandbox).desired == Desired.DELETED


def test_concurrent_desired_states_each_start_a_generation(database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user)
    overlap(
        database,
        lambda session: set_desired(session, sandbox, Desired.PAUSED),
        lambda session: set_desired(session, sandbox, Desired.RUNNING),
    )
    stored = as_stored(database, sandbox)
    assert (stored.desired, stored.generation) == (Desired.RUNNING, 3)


def test_desired_state_written_during_a_lease_stays_due(database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user, status=Status.STARTING)
    with database.transaction() as session:
        mine = leases.claim(session, Sandbox, sandbox.id, "w1", 60)
    assert mine is not None
    with database.transaction() as session:
        set_desired(session, sandbox, Desired.DELETED)
    with database.transaction() as session:
        sandbox_status.set_status(session, mine, ObservedState(Status.RUNNING), observed_generation=mine.generation)
        leases.release(session, Sandbox, mine.id, mine.fence)
    stored = as_stored(database, sandbox)
    assert (stored.status, stored.observed_generation) == (Status.RUNNING, 1)
    assert (stored.desired, stored.generation) == (Desired.DELETED, 2)
    assert stored.due_at is not None


@pytest.mark.parametrize("written_later", [False, True])
def test_acknowledgement_leaves_a_later_desired_state_due(
    database: Database, user: ApiUser, *, written_later: bool
) -> None:
    sandbox = make_sandbox(database, user)
    with database.transaction() as session:
        set_desired(session, sandbox, Desired.PAUSED)
    read = as_stored(database, sandbox)
    with database.transaction() as session:
        if written_later:
            set_desired(session, sandbox, Desired.RUNNING)
        desired_state.acknowledge(session, sandbox.id, read.fence, read.generation)
    assert (as_stored(database, sandbox).due_at is not None) is written_later


def test_acknowledgement_affects_the_leased_row_only(database: Database, user: ApiUser) -> None:
    mine, other = (make_sandbox(database, user, fence=7, due_at=now()) for _ in range(2))
    with database.transaction() as session:
        desired_state.acknowledge(session, mine.id, mine.fence - 1, mine.generation)
    assert as_stored(database, mine).due_at is not None
    with database.transaction() as session:
        desired_state.acknowledge(session, mine.id, mine.fence, mine.generation)
    assert [as_stored(database, row).due_at is not None for row in (mine, other)] == [False, True]


def test_owners_list_their_own_sandboxes_until_they_delete_them(
    database: Database, user: ApiUser, other_user: ApiUser
) -> None:
    mine = make_sandbox(database, user)
    deleted = make_sandbox(database, user, desired=Desired.DELETED)
    theirs = make_sandbox(database, other_user)
    with database.reading() as session:
        assert sandbox_queries.get(session, mine.id, user.id).id == mine.id
        for hidden in (deleted, theirs):
            with pytest.raises(NotFound):
                sandbox_queries.get(session, hidden.id, user.id)
        found = sandbox_queries.get_many(session, [theirs.id, mine.id, deleted.id, "0" * 32], user.id)
        assert [sandbox and sandbox.id for sandbox in found] == [None, mine.id, None, None]
    listed = sandbox_lists.search(database, user.id, None, 10).items
    assert [sandbox_lists.read_text(text)[0].id for text in listed] == [mine.id]


def test_sandbox_is_found_by_its_session_key_alone(database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user)
    make_sandbox(database, user)
    with database.reading() as session:
        found = sandbox_queries.find_by_session_key(session, VAULT, session_key_of(sandbox))
        assert found is not None
        assert found.id == sandbox.id
        assert sandbox_queries.find_by_session_key(session, VAULT, "") is None
        assert sandbox_queries.find_by_session_key(session, VAULT, sandbox.session_key) is None


def test_session_key_is_not_stored_in_plain_text(database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user)
    key = session_key_of(sandbox)
    assert all(key not in str(value) for value in as_stored(database, sandbox).model_dump().values())


def test_sandbox_in_error_is_not_usable(database: Database, user: ApiUser) -> None:
    with pytest.raises(Invalid, match="exit_code"):
        sandbox_queries.require_usable(make_sandbox(database, user, status=Status.ERROR))
    sandbox_queries.require_usable(make_sandbox(database, user, status=Status.PAUSED))


def test_resync_reads_the_sandboxes_that_are_not_deleted(database: Database, user: ApiUser) -> None:
    held = {make_sandbox(database, user, status=status).id for status in set(Status) - {Status.DELETED}}
    make_sandbox(database, user, status=Status.DELETED)
    make_sandbox(database, user, node_id="node-b")
    with database.reading() as session:
        assert {sandbox.id for sandbox in sandbox_queries.on_node(session, "node-a")} == held


def bump(session: Session, sandbox: Sandbox) -> None:
    assert desired_state.bump_generation(session, sandbox.id, due_at=now())


def discard(session: Session, sandbox: Sandbox) -> None:
    task = session.exec(select(StartTask).where(StartTask.sandbox_id == sandbox.id)).one()
    assert start_tasks.delete_unused_sandbox(session, task, now())


@pytest.mark.parametrize("act", [bump, discard])
def test_new_generation_sets_updated_at(
    database: Database, user: ApiUser, act: Callable[[Session, Sandbox], None]
) -> None:
    sandbox = make_sandbox(database, user, updated_at=after(-60))
    make_start_task(database, user, sandbox, made_sandbox=True, stage=Stage.ERROR)
    with database.transaction() as session:
        act(session, sandbox)
    stored = as_stored(database, sandbox)
    assert stored.generation == sandbox.generation + 1
    assert stored.updated_at > after(-30)


@pytest.mark.parametrize("column", ["fence", "generation"])
def test_deletion_of_a_changed_sandbox_row_writes_nothing(database: Database, user: ApiUser, column: str) -> None:
    sandbox = make_sandbox(database, user, fence=7)
    stored = as_stored(database, sandbox)
    setattr(sandbox, column, getattr(sandbox, column) - 1)
    with pytest.raises(LeaseLost), database.transaction() as session:
        quarantine.delete_sandbox_row(session, sandbox, due_at=now())
    assert as_stored(database, sandbox) == stored


def test_generation_is_raised_in_one_module() -> None:
    raising = re.compile(r"generation\)? \+ 1")
    found = [path.name for path in (REPOSITORY / "shared").rglob("*.py") if raising.search(path.read_text())]
    assert found == ["desired_state.py"]

"""Rows that wait for a sandbox: which are marked due, and which worker finds them."""

from datetime import timedelta

from shared.clock import after, now
from shared.db.database import Database
from shared.leasing import waiters
from shared.leasing.waiters import Waiters
from shared.states import Stage, Status
from tests.factories import NODE_ID, ApiUser, make_conversation, make_node, make_sandbox, make_start_task
from tests.rows import as_stored

PAST = timedelta(seconds=1)


def find_due(database: Database, node_id: str, *, without_container: bool) -> Waiters:
    with database.reading() as session:
        return waiters.find_due(session, node_id, without_container=without_container)


def test_waiters_of_the_sandbox_are_marked_due_and_no_other_rows(database: Database, user: ApiUser) -> None:
    sandbox, elsewhere = make_sandbox(database, user), make_sandbox(database, user)
    retried = after(10)
    tasks = [
        make_start_task(database, user, place, stage=stage, due_at=retried)
        for place, stage in ((sandbox, Stage.WAITING_FOR_SANDBOX), (sandbox, Stage.READY), (elsewhere, Stage.WORKING))
    ]
    conversations = [
        make_conversation(database, user, place, awaits_sandbox=waits, due_at=retried)
        for place, waits in ((sandbox, True), (sandbox, False), (elsewhere, True))
    ]
    at = now()
    with database.transaction() as session:
        found = waiters.enqueue_waiters(session, sandbox.id, at)
    assert found == Waiters([tasks[0].id], [conversations[0].id])
    assert [as_stored(database, task).due_at for task in tasks] == [at, retried, retried]
    assert [as_stored(database, conversation).due_at for conversation in conversations] == [at, retried, retried]


def test_waiters_are_found_by_the_worker_of_their_node(database: Database, user: ApiUser) -> None:
    make_node(database, "node-b")
    sandbox, placeless = make_sandbox(database, user), make_sandbox(database, user, node_id=None)
    near = make_start_task(database, user, sandbox, due_at=now() - PAST).id
    unplaced = make_start_task(database, user, placeless, due_at=now() - PAST * 2).id
    assert find_due(database, NODE_ID, without_container=False) == Waiters([near], [])
    assert find_due(database, NODE_ID, without_container=True) == Waiters([unplaced, near], [])
    assert not any(find_due(database, "node-b", without_container=False))
    assert find_due(database, "node-b", without_container=True) == Waiters([unplaced], [])


def test_waiters_of_a_deleted_sandbox_are_found_by_any_worker(database: Database, user: ApiUser) -> None:
    """The node of the sandbox may have been forgotten since."""
    make_node(database, "node-b")
    deleted = make_sandbox(database, user, status=Status.DELETED)
    conversation = make_conversation(database, user, deleted, due_at=now() - PAST).id
    assert not any(find_due(database, "node-b", without_container=False))
    assert find_due(database, "node-b", without_container=True) == Waiters([], [conversation])

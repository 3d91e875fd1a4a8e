"""The change feed: its entries, reads without missed entries, and retention."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlmodel import Session, select

from shared.changes import change_feed, recorder
from shared.changes import recorder as change_recorder
from shared.changes.recorder import Change, Kind
from shared.clock import now
from shared.conversations import queries as conversation_queries
from shared.conversations import start_tasks, webhook_reports
from shared.conversations import webhook_ingest as report_store
from shared.conversations.webhook_reports import Report
from shared.crypto import Vault
from shared.db.database import Database
from shared.leasing import leases
from shared.models import ChangeEntry, ChangeFeed, Node, Sandbox, SandboxSpec
from shared.sandboxes import desired_state
from shared.sandboxes import status as sandbox_status
from shared.sandboxes.status import ObservedState
from shared.states import Desired, PauseKind, Stage, Status
from shared.warm_pool import start as sandbox_start
from tests.due_checks import is_due
from tests.factories import ApiUser, make_conversation, make_sandbox, make_start_task
from tests.interleaving import _in_transaction, _is_waiting, overlap
from tests.waiting import eventually

OWNER, OTHER = "a" * 32, "b" * 32


def change(row_id: str, owner_id: str = OWNER) -> Change:
    return Change(owner_id, Kind.SANDBOX, row_id, "RUNNING")


def append(database: Database, *row_ids: str, owner_id: str = OWNER) -> None:
    with database.transaction() as session:
        recorder.append(session, [change(row_id, owner_id) for row_id in row_ids])


def read(database: Database, after: int = 0, owner_id: str = OWNER) -> list[tuple[int, str]] | None:
    with database.reading() as session:
        found = change_feed.read(session, owner_id, after)
    return None if found is None else [(entry.number, entry.row_id) for entry in found]


def changes_of(database: Database, owner: ApiUser) -> list[tuple[str, str | None]]:
    """The owner's entries so far."""
    with database.reading() as session:
        found: Sequence[ChangeEntry] | None = change_feed.read(session, owner.id, 0)
    assert found is not None
    return [(entry.kind, entry.status) for entry in found]


class TestWriters:
    def test_sandbox_lifecycle_is_in_the_feed(
        self, database: Database, user: ApiUser, other_user: ApiUser, spec: SandboxSpec, node: Node, vault: Vault
    ) -> None:
        with database.transaction() as session:
            row = sandbox_start.start(session, vault, owner_id=user.id, spec=spec, due_at=now()).sandbox
        work(database, row.id, ObservedState(Status.RUNNING))
        set_desired(database, row.id, Desired.PAUSED)
        work(database, row.id, ObservedState(Status.PAUSED, pause_kind=PauseKind.FROZEN))
        set_desired(database, row.id, Desired.DELETED)
        work(database, row.id, ObservedState(Status.DELETING))
        work(database, row.id, ObservedState(Status.DELETED))
        states = ["STARTING", "RUNNING", "RUNNING", "PAUSED", "DELETING", "DELETING", "DELETED"]
        assert changes_of(database, user) == [("sandbox", state) for state in states]
        assert changes_of(database, other_user) == []

    def test_conversation_start_is_in_the_feed(self, database: Database, user: ApiUser) -> None:
        sandbox = make_sandbox(database, user)
        task = make_start_task(database, user, sandbox, stage=Stage.STARTING_CONVERSATION)
        make_conversation(database, user, sandbox, id=task.conversation_id, listed=False)
        with database.transaction() as session:
            start_tasks.advance(session, task, Stage.READY)
            conversation_queries.publish(session, task.conversation_id)
        assert changes_of(database, user) == [("start_task", "READY"), ("conversation", None)]

    def test_webhooks_of_unlisted_conversations_are_not_in_the_feed(self, database: Database, user: ApiUser) -> None:
        sandbox = make_sandbox(database, user)
        shown = make_conversation(database, user, sandbox)
        hidden = make_conversation(database, user, sandbox, listed=False)
        for conversation in (hidden, shown, shown):
            with database.transaction() as session:
                report = webhook_reports.ConversationReport(
                    conversation.id, Report(at=now(), execution_status="running")
                )
                report_store.record_conversation(session, sandbox, report)
        # The second webhook of `shown` contains nothing new.
        assert changes_of(database, user) == [("conversation", "running")]

    def test_row_that_changes_twice_in_a_transaction_has_one_entry(self, database: Database, user: ApiUser) -> None:
        row = make_sandbox(database, user)
        with database.transaction() as session:
            for desired in (Desired.PAUSED, Desired.DELETED):
                desired_state.set_desired(session, session.get_one(Sandbox, row.id), desired, due_at=now())
        assert changes_of(database, user) == [("sandbox", "DELETING")]

    def test_change_before_a_failed_savepoint_is_recorded(self, database: Database) -> None:
        with database.transaction() as session:
            change_recorder.record_change_of(session, change("before"))
            with pytest.raises(ZeroDivisionError), change_recorder.savepoint(session):
                raise ZeroDivisionError
        assert read(database) == [(1, "before")]

    def test_change_that_is_rolled_back_is_not_in_the_feed(self, database: Database, user: ApiUser) -> None:
        row = make_sandbox(database, user)

        def fail(session: Session) -> None:
            change_recorder.record_change(session, session.get_one(Sandbox, row.id))
            raise ZeroDivisionError

        with database.transaction() as session, pytest.raises(ZeroDivisionError), change_recorder.savepoint(session):
            fail(session)
        with pytest.raises(ZeroDivisionError), database.transaction() as session:
            fail(session)
        assert changes_of(database, user) == []


def set_desired(database: Database, sandbox_id: str, desired: Desired) -> None:
    with database.transaction() as session:
        desired_state.set_desired(session, session.get_one(Sandbox, sandbox_id), desired, due_at=now())


def work(database: Database, sandbox_id: str, state: ObservedState) -> None:
    with database.transaction() as session:
        leases.mark_due(session, Sandbox, sandbox_id, now())
        row = leases.claim(session, Sandbox, sandbox_id, "worker", 5)
        assert row is not None
        sandbox_status.set_status(session, row, state, observed_generation=row.generation)
        leases.release(session, Sandbox, row.id, row.fence)


class TestReaders:
    def test_numbers_are_each_owners_own(self, database: Database) -> None:
        append(database, "one")
        append(database, "other", owner_id=OTHER)
        append(database, "two", "three")
        assert read(database) == [(1, "one"), (2, "two"), (3, "three")]
        assert (read(database, 1), read(database, 3)) == ([(2, "two"), (3, "three")], [])
        assert read(database, owner_id=OTHER) == [(1, "other")]

    def test_unassigned_number_is_reported_as_a_gap(self, database: Database) -> None:
        append(database, "one")
        assert (read(database, 2), read(database, 7, owner_id=OTHER)) == (None, None)

    def test_later_number_is_not_seen_before_an_earlier_one(self, database: Database) -> None:
        """Otherwise a concurrent reader would continue from the later one, and never read the earlier one."""
        with ThreadPoolExecutor(1) as pool:
            with database.transaction() as session:
                recorder.append(session, [change("first")])
                second = pool.submit(_in_transaction, database, append_one("second"))
                eventually(lambda: second.done() or _is_waiting(database, second))
                assert read(database) == []
            second.result(30)
        assert read(database) == [(1, "first"), (2, "second")]

    def test_number_of_a_rollback_is_reused(self, database: Database) -> None:
        def fail(session: Session) -> None:
            recorder.append(session, [change("failed")])
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError), database.transaction() as session:
            fail(session)
        append(database, "one")
        assert read(database) == [(1, "one")]

    def test_two_changes_of_the_same_owners_do_not_deadlock(self, database: Database) -> None:
        mine, theirs = change("mine"), change("theirs", OTHER)
        overlap(
            database,
            lambda session: recorder.append(session, [mine, theirs]),
            lambda session: recorder.append(session, [theirs, mine]),
        )
        assert read(database) == [(1, "mine"), (2, "mine")]


def append_one(row_id: str) -> Callable[[Session], None]:
    return lambda session: recorder.append(session, [change(row_id)])


class TestRetention:
    def test_expired_entries_are_removed_and_reported_as_a_gap(self, database: Database) -> None:
        append(database, "one", "two", "three")
        with database.transaction() as session:
            for entry in session.exec(select(ChangeEntry).where(ChangeEntry.number <= 2)):
                entry.at = now() - change_feed.RETENTION - timedelta(seconds=1)
        with database.transaction() as session:
            assert is_due(session, change_feed.EXPIRED)
            change_feed.delete_expired(session)
            assert not is_due(session, change_feed.EXPIRED)
        assert (read(database, 0), read(database, 1)) == (None, None)
        assert (read(database, 2), read(database, 3)) == ([(3, "three")], [])

    def test_deleted_entries_are_reported_as_a_gap(self, database: Database) -> None:
        append(database, "one")
        with database.transaction() as session:
            session.delete(session.exec(select(ChangeEntry)).one())
        assert (read(database, 0), read(database, 1)) == (None, [])
        append(database, "two")
        assert (read(database, 0), read(database, 1)) == (None, [(2, "two")])

    def test_gap_in_the_middle_is_detected(self, database: Database) -> None:
        append(database, "one", "two", "three")
        with database.transaction() as session:
            session.delete(session.exec(select(ChangeEntry).where(ChangeEntry.number == 2)).one())
        assert (read(database, 0), read(database, 2)) == (None, [(3, "three")])

    def test_owner_s_entries_are_limited(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(recorder, "MAX_STORED", 5)
        monkeypatch.setattr(recorder, "REMOVED_EVERY", 2)
        append(database, "other", owner_id=OTHER)
        for number in range(1, 21):
            append(database, str(number))
        assert (read(database, 14), read(database, 15)) == (None, [(n, str(n)) for n in range(16, 21)])
        assert read(database, owner_id=OTHER) == [(1, "other")]

    def test_commands_in_one_statement_remove_old_entries_too(self, database: Database, user: ApiUser) -> None:
        sandbox, newest = make_sandbox(database, user), recorder.MAX_STORED + recorder.REMOVED_EVERY
        with database.transaction() as session:
            session.add(ChangeFeed(owner_id=user.id, last=newest - 1))
            for number in (recorder.REMOVED_EVERY, recorder.REMOVED_EVERY + 1):
                session.add(ChangeEntry(owner_id=user.id, number=number, kind=Kind.SANDBOX, row_id="old"))
        desired_state.set_desired_and_commit(database, sandbox.id, user.id, Desired.PAUSED, due_at=now())
        with database.reading() as session:
            assert list(session.exec(select(ChangeEntry.number))) == [recorder.REMOVED_EVERY + 1, newest]

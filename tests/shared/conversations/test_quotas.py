"""The stored bytes of each user are counted exactly in each transaction, and limited by quotas."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import func
from sqlmodel import Session, col, select

from shared.changes import recorder as change_recorder
from shared.changes.recorder import Usage
from shared.clock import now
from shared.conversations import deletion, webhook_ingest
from shared.conversations import queries as conversation_queries
from shared.conversations import quotas as conversation_quotas
from shared.conversations.webhook_ingest import Recorded
from shared.conversations.webhook_reports import EVENTS_REFUSED, read_conversation, read_event
from shared.db.database import Database
from shared.errors import QuotaExceeded
from shared.ids import new_id
from shared.models import Conversation, Event, Sandbox
from shared.settings import StoredQuotas
from shared.sql.pagination import measure
from shared.states import Stage
from tests.api.agent_reports import conversation_report, event_report, update_report
from tests.factories import ApiUser, make_conversation, make_sandbox, make_start_task
from tests.interleaving import overlap


@pytest.fixture
def sandbox(database: Database, user: ApiUser) -> Sandbox:
    return make_sandbox(database, user)


def usage_of(database: Database, owner: ApiUser) -> Usage:
    """The recorded usage, which must equal the actual one."""
    with database.reading() as session:
        recorded = change_recorder.read_usage(session, owner.id)
        owned = select(Conversation.id).where(Conversation.owner_id == owner.id)
        of_owner = col(Event.conversation_id).in_(owned)
        alive = owned.where(col(Conversation.deleted_at).is_(None))
        sizes = session.exec(select(measure(session, col(Event.body))).where(of_owner)).all()
        conversations = session.exec(select(func.count()).select_from(alive.subquery())).one()
        assert recorded == Usage(conversations, len(sizes), sum(sizes))
    return recorded


def report(
    conversation_id: str, *bodies: dict[str, Any], limits: StoredQuotas | None = None
) -> Callable[[Session, Sandbox], Recorded]:
    def record(session: Session, sandbox: Sandbox) -> Recorded:
        events = [read_event(body) for body in bodies]
        own = limits or StoredQuotas()
        return webhook_ingest.record_events(session, sandbox, conversation_id, events, due_at=now(), limits=own)

    return record


def send(database: Database, sandbox: Sandbox, *arguments: Any, **options: Any) -> Recorded:
    with database.transaction() as session:
        return report(*arguments, **options)(session, sandbox)


def test_usage_follows_stored_and_removed_events(
    database: Database, user: ApiUser, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "EVENTS_AT_ONCE", 2)
    one, other = new_id(), new_id()
    first, second = event_report(text="é"), event_report(text="x" * 500)
    send(database, sandbox, one, first, second)
    send(database, sandbox, one, second, first, event_report())
    send(database, sandbox, other, event_report())
    assert usage_of(database, user)[:2] == (2, 4)
    with database.transaction() as session:
        deletion.delete_conversation(session, one, user.id, due_at=now())
    assert usage_of(database, user)[:2] == (1, 4)
    for more, left in ((True, 2), (False, 1)):
        with database.transaction() as session:
            assert deletion.remove_events(session, one, user.id) == more
        assert usage_of(database, user)[:2] == (1, left)
    with database.transaction() as session:
        conversation_queries.purge(session, other)
        conversation_queries.purge(session, one)
    assert usage_of(database, user) == (0, 0, 0)


def test_transaction_that_fails_counts_nothing(database: Database, user: ApiUser, sandbox: Sandbox) -> None:
    conversation_id = new_id()
    send(database, sandbox, conversation_id, event_report())
    before = usage_of(database, user)

    def fail(session: Session) -> None:
        report(conversation_id, event_report())(session, sandbox)
        conversation_queries.purge(session, conversation_id)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), database.transaction() as session:
        fail(session)
    assert usage_of(database, user) == before


def test_concurrent_webhooks_are_all_counted(database: Database, user: ApiUser, sandbox: Sandbox) -> None:
    one, other, common = new_id(), new_id(), event_report()
    overlap(
        database,
        lambda session: report(one, common, event_report())(session, sandbox),
        lambda session: report(other, event_report())(session, sandbox),
    )
    overlap(
        database,
        lambda session: report(one, common, event_report())(session, sandbox),
        lambda session: report(one, common, event_report())(session, sandbox),
    )
    assert usage_of(database, user)[:2] == (2, 5)


def test_last_place_goes_to_one_of_two_reports(database: Database, user: ApiUser, sandbox: Sandbox) -> None:
    one, other = new_id(), new_id()
    for conversation_id in (one, other):
        send(database, sandbox, conversation_id)
    limits = StoredQuotas(events=1)
    found = overlap(
        database,
        lambda session: report(one, event_report(), limits=limits)(session, sandbox),
        lambda session: report(other, event_report(), limits=limits)(session, sandbox),
    )
    assert [recorded.refusal is None for recorded in found] == [True, False]
    assert usage_of(database, user).events == 1


@pytest.mark.parametrize("limits", [StoredQuotas(events=2), StoredQuotas(event_bytes=2_000)])
def test_refusal_of_events_is_shown_until_they_are_stored(
    database: Database, user: ApiUser, sandbox: Sandbox, limits: StoredQuotas
) -> None:
    conversation_id, other = new_id(), new_id()
    stored, late = event_report(text="x" * 800), event_report(text="y" * 1200, after=1)
    send(database, sandbox, other, event_report())
    assert send(database, sandbox, conversation_id, stored, limits=limits).refusal is None
    running = update_report("execution_status", "running", after=1)
    refused = send(database, sandbox, conversation_id, late, running, limits=limits)
    assert isinstance(refused.refusal, QuotaExceeded)
    assert usage_of(database, user).events == 2
    with database.reading() as session:
        row = session.get_one(Conversation, conversation_id)
        # The execution status is stored nevertheless, because a sandbox whose agent has ended must be paused.
        assert (row.execution_status, row.execution_reason) == ("running", EVENTS_REFUSED)
        assert "AW_QUOTA_EVENT" in str(row.execution_detail)
    # Events that are already stored need no room.
    assert send(database, sandbox, conversation_id, stored, limits=limits).refusal is None
    with database.transaction() as session:
        conversation_queries.purge(session, other)
    # The agent server sends refused events again.
    assert send(database, sandbox, conversation_id, late, limits=StoredQuotas(events=2)).refusal is None
    with database.reading() as session:
        assert session.get_one(Conversation, conversation_id).execution_reason is None


def test_sandbox_reports_no_more_conversations_than_the_quota(
    database: Database, user: ApiUser, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def report_conversation(limits: StoredQuotas) -> None:
        with database.transaction() as session:
            reported = read_conversation(conversation_report(new_id()))
            webhook_ingest.record_conversation(session, sandbox, reported, limits)

    report_conversation(StoredQuotas(conversations=2))
    report_conversation(StoredQuotas(conversations=2))
    with pytest.raises(QuotaExceeded, match="AW_QUOTA_CONVERSATIONS"):
        report_conversation(StoredQuotas(conversations=2))
    assert usage_of(database, user).conversations == 2
    monkeypatch.setattr(conversation_quotas, "MAX_OF_SANDBOX", 3)
    report_conversation(StoredQuotas())
    with pytest.raises(QuotaExceeded, match="that a sandbox may report"):
        report_conversation(StoredQuotas())
    assert usage_of(database, user).conversations == 3


def test_starts_under_way_count(database: Database, user: ApiUser, sandbox: Sandbox) -> None:
    send(database, sandbox, new_id())
    with database.transaction() as session:
        conversation_quotas.admit_start(session, user.id, 2)
    make_start_task(database, user, sandbox)
    with pytest.raises(QuotaExceeded, match="2 conversations"), database.transaction() as session:
        conversation_quotas.admit_start(session, user.id, 2)


def test_starts_that_are_over_or_of_others_do_not_count(
    database: Database, user: ApiUser, other_user: ApiUser, sandbox: Sandbox
) -> None:
    make_start_task(database, user, sandbox, stage=Stage.ERROR)
    make_start_task(database, other_user, make_sandbox(database, other_user))
    with database.transaction() as session:
        conversation_quotas.admit_start(session, user.id, 1)
    make_start_task(database, user, sandbox)
    with pytest.raises(QuotaExceeded), database.transaction() as session:
        conversation_quotas.admit_start(session, user.id, 1)


def test_conversations_in_other_sandboxes_do_not_count(
    database: Database, user: ApiUser, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation_quotas, "MAX_OF_SANDBOX", 1)
    full = make_sandbox(database, user)
    make_conversation(database, user, full)
    with database.reading() as session:
        conversation_quotas.check_sandbox(session, sandbox.id)
        with pytest.raises(QuotaExceeded):
            conversation_quotas.check_sandbox(session, full.id)

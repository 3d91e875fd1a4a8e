"""A conversation with many descendants is deleted in several transactions, none of them with more than a few rows."""

from collections.abc import Sequence

import pytest
from sqlmodel import col, func, select, update

from shared.clock import after, now
from shared.conversations import deletion
from shared.errors import LeaseLost
from shared.models import Conversation, Sandbox
from shared.states import Desired
from tests.doubles import RecordingPublisher
from tests.factories import ApiUser, make_conversation
from tests.worker.scenarios import another, change, deliver, row
from worker.context import WorkerContext
from worker.conversations.refresh import refresh_conversation
from worker.loops.sweep import sweep

CHILDREN = 300


@pytest.fixture
def parent(context: WorkerContext, user: ApiUser, sandbox: Sandbox) -> Conversation:
    """A conversation whose sandbox was made for it."""
    change(context, Sandbox, sandbox.id, goes_with_conversations=True)
    return make_conversation(context.database, user, sandbox, title_settled=True)


@pytest.fixture
def children(context: WorkerContext, user: ApiUser, sandbox: Sandbox, parent: Conversation) -> Sequence[Conversation]:
    return [
        make_conversation(context.database, user, sandbox, parent_id=parent.id, title_settled=True)
        for _ in range(CHILDREN)
    ]


def count_listed(context: WorkerContext) -> int:
    with context.database.reading() as session:
        return session.exec(select(func.count()).select_from(Conversation).where(col(Conversation.listed))).one()


def delete_as_the_api(context: WorkerContext, publisher: RecordingPublisher, parent: Conversation) -> None:
    with context.database.transaction() as session:
        jobs = deletion.delete_conversation(session, parent.id, parent.owner_id, due_at=now())
    for job in jobs:
        publisher.publish(job)


def test_request_deletes_a_few_children_and_the_worker_the_rest(
    context: WorkerContext, publisher: RecordingPublisher, parent: Conversation, children: Sequence[Conversation]
) -> None:
    delete_as_the_api(context, publisher, parent)
    assert count_listed(context) == 1 + len(children) - deletion.MAX_TARGETS
    assert row(context, Sandbox, parent.sandbox_id).desired == Desired.RUNNING
    deliver(context)
    assert count_listed(context) == 0
    assert row(context, Sandbox, parent.sandbox_id).desired == Desired.DELETED


@pytest.mark.usefixtures("children")
def test_deletion_is_continued_by_the_next_worker(
    context: WorkerContext, publisher: RecordingPublisher, parent: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete_as_the_api(context, publisher, parent)
    publisher.jobs.clear()
    left = count_listed(context)
    with monkeypatch.context() as patch:
        patch.setattr(deletion, "delete_children", _dying_after(2))
        refresh_conversation(context, parent.id)
    assert count_listed(context) == left - 2 * deletion.MAX_TARGETS
    change(context, Conversation, parent.id, lease_until=after(-1))
    refresh_conversation(another(context), parent.id)
    assert count_listed(context) == 0


@pytest.mark.usefixtures("children")
def test_each_transaction_marks_progress(
    context: WorkerContext, publisher: RecordingPublisher, parent: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the worker would lose its lease during a long deletion."""
    delete_as_the_api(context, publisher, parent)
    left, marked = count_listed(context), list[str]()
    monkeypatch.setattr(context.renewer, "mark_progress", lambda _table, found: marked.append(found.id))
    refresh_conversation(context, parent.id)
    assert marked.count(parent.id) >= left // deletion.MAX_TARGETS


def test_descendants_are_deleted_if_all_jobs_are_lost(
    context: WorkerContext, publisher: RecordingPublisher, user: ApiUser, sandbox: Sandbox, parent: Conversation
) -> None:
    last = parent
    for _ in range(3 * deletion.MAX_TARGETS):
        last = make_conversation(context.database, user, sandbox, parent_id=last.id, title_settled=True)
    delete_as_the_api(context, publisher, parent)
    for _ in range(30):
        publisher.jobs.clear()
        with context.database.transaction() as session:
            session.execute(update(Conversation).where(col(Conversation.due_at) > now()).values(due_at=now()))
        sweep(context)
        deliver(context)
    assert count_listed(context) == 0


def _dying_after(calls: int) -> object:
    """The deletion, in a worker that stops after a number of calls."""
    left, delete = iter(range(calls)), deletion.delete_children

    def call(*args: object, **options: object) -> object:
        if next(left, None) is None:
            raise LeaseLost("the worker has died")
        return delete(*args, **options)  # type: ignore[arg-type]

    return call

"""Failed starts have a retention and a limit per owner, and count as creates."""

from datetime import timedelta
from typing import Any

import pytest
import time_machine
from sqlmodel import col, select

from shared.clock import after, now
from shared.conversations import start as conversation_start
from shared.conversations import start_tasks
from shared.conversations.start import StartCommand
from shared.db.database import Database
from shared.errors import QuotaExceeded
from shared.ids import new_id
from shared.models import SandboxSpec, StartTask
from shared.settings import NO_QUOTAS, Quotas
from shared.states import Reason, Stage
from shared.warm_pool import start as sandbox_start
from tests.due_checks import is_due
from tests.factories import VAULT, ApiUser, make_sandbox, make_start_task

pytestmark = pytest.mark.usefixtures("spec", "node")

FEW = Quotas(creates_per_minute=2)


def start(database: Database, owner: ApiUser, quotas: Quotas = NO_QUOTAS, **request: Any) -> StartTask:
    """Start a conversation of a user without a model: it fails at once."""
    with database.transaction() as session:
        command = StartCommand(owner.id, request, {}, now(), quotas)
        return conversation_start.create_start_task(session, VAULT, command).task


def fail(database: Database, task: StartTask) -> None:
    """Fail a start as its worker does."""
    with database.transaction() as session:
        start_tasks.advance(session, task, Stage.ERROR, reason=Reason.CANCELLED, detail="why")


def stored_requests(database: Database, owner: ApiUser) -> dict[str, Any]:
    """The requests of an owner's tasks by their ids, newest first."""
    own = select(StartTask.id, StartTask.request).where(StartTask.owner_id == owner.id)
    with database.reading() as session:
        newest_first = own.order_by(col(StartTask.updated_at).desc(), col(StartTask.id).desc())
        return dict(session.exec(newest_first).all())


def test_failed_starts_are_deleted_after_their_retention(database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user)
    old: dict[str, Any] = {"updated_at": now() - start_tasks.RETENTION}
    young: dict[str, Any] = {"updated_at": now() - start_tasks.RETENTION + timedelta(minutes=1)}
    gone = make_start_task(database, user, sandbox, stage=Stage.ERROR, **old)
    stays = [
        make_start_task(database, user, sandbox, stage=Stage.ERROR, **young),
        make_start_task(database, user, sandbox, stage=Stage.READY, **old),
        make_start_task(database, user, sandbox, **old),
    ]
    with database.transaction() as session:
        assert is_due(session, start_tasks.EXPIRED)
        start_tasks.delete_expired(session)
        assert not is_due(session, start_tasks.EXPIRED)
    assert set(stored_requests(database, user)) == {task.id for task in stays}
    assert gone.id not in stored_requests(database, user)


def test_one_round_deletes_a_limited_number_of_starts(database: Database, user: ApiUser) -> None:
    for _ in range(3):
        make_start_task(database, user, stage=Stage.ERROR, updated_at=now() - start_tasks.RETENTION)
    with database.transaction() as session:
        start_tasks.delete_expired(session, limit=2)
    assert len(stored_requests(database, user)) == 1


@pytest.mark.parametrize("by_worker", [False, True])
def test_owner_keeps_a_limited_number_of_failed_starts(
    database: Database, user: ApiUser, other_user: ApiUser, monkeypatch: pytest.MonkeyPatch, by_worker: bool
) -> None:
    monkeypatch.setattr(start_tasks, "MAX_FAILED", 3)
    others = [make_start_task(database, other_user, stage=Stage.ERROR, updated_at=after(-99)) for _ in range(2)]
    running, ready = make_start_task(database, user), make_start_task(database, user, stage=Stage.READY)
    failed = [
        make_start_task(database, user, stage=Stage.ERROR, updated_at=after(-60 + number)).id for number in range(4)
    ]
    if by_worker:
        newest = make_start_task(database, user)
        fail(database, newest)
    else:
        newest = start(database, user)
    assert set(stored_requests(database, user)) == {newest.id, *failed[2:], running.id, ready.id}
    assert set(stored_requests(database, other_user)) == {task.id for task in others}


def test_requests_of_failed_starts_have_a_limited_size(
    database: Database, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_tasks, "MAX_FAILED_BYTES", 2500)
    ready = make_start_task(database, user, stage=Stage.READY, request={"title": "x" * 3000})
    failed = [start(database, user, conversation_id=new_id(), title="x" * 1000) for _ in range(4)]
    requests = stored_requests(database, user)
    lengths = [len(requests[task.id].get("title", "")) for task in (ready, *failed)]
    assert lengths == [3000, 0, 0, 1000, 1000]
    # The fields that clients poll are still stored, and a repeated request returns the task.
    repeated = start(database, user, conversation_id=failed[0].conversation_id, title="x" * 1000)
    assert (repeated.id, repeated.stage, repeated.detail) == (failed[0].id, Stage.ERROR, conversation_start.NO_MODEL)


def test_failed_starts_count_as_creates(database: Database, user: ApiUser, other_user: ApiUser) -> None:
    for _ in range(2):
        start(database, user, FEW)
    with pytest.raises(QuotaExceeded, match="CREATES_PER_MINUTE"):
        start(database, user, FEW)
    assert len(stored_requests(database, user)) == 2
    start(database, other_user, FEW)
    with time_machine.travel(after(61)):
        start(database, user, FEW)


def test_failed_starts_and_sandboxes_count_together(database: Database, user: ApiUser, spec: SandboxSpec) -> None:
    start(database, user, FEW)
    make_sandbox(database, user, created_at=after(-30))
    make_start_task(database, user, stage=Stage.ERROR, reason=Reason.CANCELLED)
    with pytest.raises(QuotaExceeded, match="retry in 30 s"):
        start(database, user, FEW)
    with pytest.raises(QuotaExceeded, match="retry in 30 s"), database.transaction() as session:
        sandbox_start.start(session, VAULT, owner_id=user.id, spec=spec, due_at=now(), quotas=FEW)

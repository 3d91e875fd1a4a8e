"""Runs whose write fails: they continue with the row as stored, not as the failed transaction would have left it."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

import pytest
from sqlalchemy.exc import OperationalError

from shared.clock import now
from shared.conversations import queries as conversation_queries
from shared.leasing import waiters
from shared.models import Sandbox, StartTask
from shared.nodes import placement
from shared.states import Reason, Status
from tests.factories import ApiUser
from tests.worker.scenarios import assert_at_rest, assert_failed, change, configure, request_start, row, start
from worker.context import WorkerContext
from worker.conversations.start import start_conversation
from worker.lease_runner import UNAVAILABLE_SECONDS
from worker.sandboxes.reconciler import reconcile


def failing(error: Exception) -> Callable[..., NoReturn]:
    def fail(*_: Any) -> NoReturn:
        raise error

    return fail


def test_failed_last_write_is_retried_before_the_lease_expires(
    context: WorkerContext, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox_id = start(context, user)
    with monkeypatch.context() as patch:
        patch.setattr(waiters, "enqueue_waiters", failing(OperationalError("UPDATE", None, Exception("locked"))))
        reconcile(context, sandbox_id)
    found = row(context, Sandbox, sandbox_id)
    assert (found.lease_owner, found.lease_until, found.attempt) == (None, None, 0)
    assert found.due_at is not None
    assert found.due_at - now() <= timedelta(seconds=UNAVAILABLE_SECONDS)
    reconcile(context, sandbox_id)
    found = row(context, Sandbox, sandbox_id)
    assert found.status == Status.RUNNING
    assert_at_rest(found)


def test_sandbox_whose_last_write_always_fails_is_in_error(
    context: WorkerContext, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox_id = start(context, user)
    monkeypatch.setattr(placement, "record_result", failing(ValueError()))
    for attempt in range(context.settings.max_attempts):
        assert row(context, Sandbox, sandbox_id).attempt == attempt
        reconcile(context, sandbox_id)
        change(context, Sandbox, sandbox_id, due_at=now())
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.reason) == (Status.ERROR, Reason.INTERNAL_ERROR)


@pytest.mark.usefixtures("server")
def test_start_whose_last_write_always_fails_is_in_error(
    context: WorkerContext, user: ApiUser, sandbox_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(context, user)
    task_id = request_start(context, user, sandbox_id)
    monkeypatch.setattr(conversation_queries, "publish", failing(ValueError()))
    for _ in range(context.settings.max_attempts):
        assert row(context, StartTask, task_id).reason is None
        start_conversation(context, task_id)
    assert_failed(context, task_id, Reason.INTERNAL_ERROR)

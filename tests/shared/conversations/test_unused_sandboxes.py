"""The sandbox of a failed start, and no other, is deleted unless another conversation or start is in it."""

from collections.abc import Callable

import pytest

from shared.clock import now
from shared.conversations import start_tasks
from shared.db.database import Database
from shared.models import Sandbox
from shared.states import Desired, Stage
from tests.factories import ApiUser, make_conversation, make_sandbox, make_start_task
from tests.rows import as_stored


def discard(database: Database, user: ApiUser, sandbox: Sandbox, *, made_sandbox: bool = True) -> Desired:
    task = make_start_task(database, user, sandbox, made_sandbox=made_sandbox, stage=Stage.ERROR)
    with database.transaction() as session:
        start_tasks.delete_unused_sandbox(session, task, now())
    return Desired(as_stored(database, sandbox).desired)


def test_unused_sandbox_is_deleted_despite_conversations_in_others(
    database: Database, user: ApiUser, sandbox: Sandbox
) -> None:
    other = make_sandbox(database, user)
    make_conversation(database, user, other)
    make_start_task(database, user, other)
    assert discard(database, user, sandbox) == Desired.DELETED
    assert as_stored(database, other) == other


@pytest.mark.parametrize("make", [make_conversation, make_start_task])
def test_sandbox_in_use_is_kept(
    database: Database, user: ApiUser, sandbox: Sandbox, make: Callable[..., object]
) -> None:
    make(database, user, sandbox)
    assert discard(database, user, sandbox) == Desired.RUNNING


def test_sandbox_that_another_start_made_is_deleted(database: Database, user: ApiUser, sandbox: Sandbox) -> None:
    assert discard(database, user, sandbox, made_sandbox=False) == Desired.DELETED


def test_sandbox_that_its_owner_created_is_kept(database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user, goes_with_conversations=False)
    assert discard(database, user, sandbox, made_sandbox=False) == Desired.RUNNING

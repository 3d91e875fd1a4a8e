"""A store restored from a backup lists a used sandbox as starting, or its conversation: its files must stay."""

from collections.abc import Callable

import pytest

from shared.backup import store
from shared.models import Conversation, Sandbox, StartTask
from shared.states import Desired, Stage, Status
from tests.factories import ApiUser
from tests.fakes.engine import FakeEngine
from tests.worker.scenarios import change, configure, deliver, request_start, row, server_of, task_of
from worker.context import WorkerContext
from worker.conversations.start import start_conversation
from worker.engine.protocol import ContainerState
from worker.loops.resync import resync
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile


class Backup:
    """A backup of the start of a conversation in a new sandbox."""

    def __init__(self, context: WorkerContext, task_id: str) -> None:
        self.task_id, self.sandbox_id = task_id, str(task_of(context, task_id).sandbox_id)
        self._sandbox = row(context, Sandbox, self.sandbox_id).model_dump()
        self._task = task_of(context, task_id).model_dump()

    def restore(self, context: WorkerContext) -> None:
        """Restore the rows. The conversation is newer than the backup."""
        with context.database.transaction() as session:
            session.delete(session.get_one(Conversation, task_of(context, self.task_id).conversation_id))
        change(context, Sandbox, self.sandbox_id, **self._sandbox)
        change(context, StartTask, self.task_id, **self._task)
        with context.database.transaction() as session:
            store.keep_started(session)


def used(context: WorkerContext, user: ApiUser, *, boots: bool) -> Backup:
    """A sandbox in which a conversation has begun, with a backup from before or after its boot."""
    configure(context, user)
    task_id = request_start(context, user)
    sandbox_id = str(task_of(context, task_id).sandbox_id)
    if boots:
        reconcile(context, sandbox_id)
    backup = Backup(context, task_id)
    reconcile(context, sandbox_id)
    start_conversation(context, task_id)
    assert task_of(context, task_id).stage == Stage.READY
    return backup


def fail_the_boot(engine: FakeEngine, name: str) -> None:
    engine.containers[name].state, engine.at_boot = ContainerState.EXITED, 3


def lose_the_image(engine: FakeEngine, name: str) -> None:
    del engine.containers[name]
    engine.images.clear()


@pytest.mark.parametrize("trouble", [fail_the_boot, lose_the_image])
def test_sandbox_whose_boot_fails_after_a_restore_keeps_its_files(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, trouble: Callable[[FakeEngine, str], None]
) -> None:
    backup = used(context, user, boots=False)
    trouble(engine, container_name(backup.sandbox_id))
    backup.restore(context)
    reconcile(context, backup.sandbox_id)
    deliver(context)
    assert_kept(context, engine, backup, Status.ERROR)


def test_sandbox_that_was_paused_since_the_backup_keeps_its_files(
    context: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    backup = used(context, user, boots=True)
    engine.pause(container_name(backup.sandbox_id))
    backup.restore(context)
    resync(context)
    deliver(context)
    assert_kept(context, engine, backup, Status.PAUSED)


def assert_kept(context: WorkerContext, engine: FakeEngine, backup: Backup, status: Status) -> None:
    """The start has failed, and the sandbox stays with the conversation in it."""
    start_conversation(context, backup.task_id)
    deliver(context)
    resync(context)
    deliver(context)
    assert task_of(context, backup.task_id).stage == Stage.ERROR
    found = row(context, Sandbox, backup.sandbox_id)
    assert (found.desired, found.status) == (Desired.RUNNING, status)
    assert server_of(engine, backup.sandbox_id).conversations
    assert list(engine.volumes) == [container_name(backup.sandbox_id)]

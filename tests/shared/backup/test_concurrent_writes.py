"""Backups of a store that processes write to meanwhile."""

import threading
from contextlib import closing
from itertools import count
from pathlib import Path

from pydantic import SecretStr
from sqlmodel import select

from shared.backup import store
from shared.db.database import Database
from shared.ids import new_id
from shared.models import Conversation, Sandbox, StartTask
from shared.settings import Settings
from shared.states import Stage
from tests.factories import SECRET_KEY, ApiUser
from tests.waiting import eventually


def test_backup_is_consistent_while_rows_are_written(
    settings: Settings, database: Database, user: ApiUser, sandbox: Sandbox, clean: Settings, tmp_path: Path
) -> None:
    stopped, written, backups = threading.Event(), list[str](), count()

    def write() -> None:
        """Write a conversation and a start task of it in each transaction."""
        while not stopped.is_set():
            task = StartTask(
                owner_id=user.id, sandbox_id=sandbox.id, conversation_id=new_id(), stage=Stage.READY, request={}
            )
            row_id = task.conversation_id
            with database.transaction() as session:
                session.add(Conversation(id=row_id, owner_id=user.id, sandbox_id=sandbox.id, title=""))
                session.add(task)
            written.append(row_id)

    def has_written_meanwhile() -> bool:
        before = len(written)
        store.back_up(settings, tmp_path / f"backup-{next(backups)}", None)
        return 0 < before < len(written)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        eventually(has_written_meanwhile)
    finally:
        stopped.set()
        writer.join()
    clean = clean.model_copy(update={"secret_keys": SecretStr(SECRET_KEY)})
    store.restore(clean, tmp_path / f"backup-{next(backups) - 1}", None)
    with closing(Database(clean.database)) as restored, restored.reading() as session:
        found = set(session.exec(select(Conversation.id)).all())
        assert found == set(session.exec(select(StartTask.conversation_id)).all())
        assert set() < found <= set(written)

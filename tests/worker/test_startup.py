"""A worker that starts while the database does not respond waits for it."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from shared.db.database import Database
from shared.nodes import registry
from worker.context import WorkerContext
from worker.startup import await_installation, await_store


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.db.waiting.time.sleep", lambda _seconds: None)


def failing_once(function: Any) -> Any:
    """The function, whose first call fails as during a restart of the database."""
    failures = [OperationalError("SELECT", {}, Exception())]

    def call(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return function(*arguments)

    return call


def test_installation_is_read_when_the_database_responds(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with database.transaction() as session:
        expected = registry.installation_id(session)
    monkeypatch.setattr(registry, "installation_id", failing_once(registry.installation_id))
    assert await_installation(database, 60) == expected


def test_step_of_the_start_is_repeated_until_the_database_responds(context: WorkerContext) -> None:
    done: list[str] = []
    await_store(context, failing_once(lambda: done.append("done")))
    assert done == ["done"]


def test_worker_ends_with_a_message_after_its_wait(context: WorkerContext) -> None:
    settings = context.settings.model_copy(update={"database_wait_seconds": 0})
    with pytest.raises(SystemExit, match=r"worker: .*database"):
        await_store(replace(context, settings=settings), failing_once(lambda: None))

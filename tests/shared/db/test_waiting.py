"""The wait for a database at a process's start: its logs, its duration, and its end."""

import socket
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from deploy.engine_filter.__main__ import make_policy
from deploy.service.node_address import await_address
from shared.db import waiting
from shared.db.database import Database
from shared.db.migrations import migrate, opened, read_schema
from shared.db.waiting import await_database, await_schema, newest_migration
from shared.errors import Unavailable
from shared.settings import Settings
from worker.__main__ import make_context
from worker.celery_app import app
from worker.settings import WorkerSettings

URL = "postgresql+psycopg://workspace:hush@db.invalid:5433/workspace?sslpassword=hush"
SHOWN = "postgresql://db.invalid:5433/workspace"


class Attempts:
    """Make connections fail with each of these texts in turn, and then succeed."""

    def __init__(self, *failures: str) -> None:
        self._failures = list(failures)

    def __call__(self) -> str:
        if self._failures:
            raise OperationalError("SELECT hush", {"value": "hush"}, Exception(self._failures.pop(0)))
        return "found"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the pauses instead of sleeping."""
    made = list[float]()
    monkeypatch.setattr("shared.db.waiting.time.sleep", made.append)
    return made


@pytest.fixture
def refusing() -> Iterator[str]:
    """The URL of a PostgreSQL that is not running, with a password."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        yield f"postgresql+psycopg://workspace:hush@127.0.0.1:{taken.getsockname()[1]}/workspace"


def test_database_that_a_process_creates_before_the_migration_is_private(tmp_path: Path) -> None:
    file = tmp_path / "new.db"
    with closing(Database(f"sqlite:///{file}")) as database, pytest.raises(Unavailable, match="db migrate"):
        await_schema(database, 0)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_pauses_double_up_to_a_maximum(pauses: list[float]) -> None:
    assert await_database(Attempts(*["refused"] * 6), URL, 60) == "found"
    assert pauses == [0.5, 1, 2, 4, 5, 5]


@pytest.mark.usefixtures("pauses")
def test_each_cause_is_logged_once_without_secrets() -> None:
    with capture_logs() as logs:
        await_database(Attempts("refused\n\tIs it running?", "refused\n\tIs it running?", "starting up"), URL, 60)
    event = {"event": "waiting_for_database", "log_level": "info", "database": SHOWN, "at_most_seconds": 60}
    assert logs == [event | {"cause": "refused Is it running?"}, event | {"cause": "starting up"}]


def test_database_that_responds_is_not_logged(pauses: list[float]) -> None:
    with capture_logs() as logs:
        assert await_database(Attempts(), URL, 60) == "found"
    assert (logs, pauses) == ([], [])


def test_wait_ends_with_one_line_without_secrets() -> None:
    with pytest.raises(Unavailable) as ended:
        await_database(Attempts(*["refused"] * 6), URL, 0.1)
    said = f"the database {SHOWN} is not ready after 0.1 s: refused (more: agent-workspace explain {waiting.ENTRY})"
    assert str(ended.value) == said


def test_without_a_wait_there_is_one_attempt(pauses: list[float]) -> None:
    with capture_logs() as logs, pytest.raises(Unavailable, match="is not ready: refused"):
        await_database(Attempts("refused"), URL, 0)
    assert (logs, pauses) == ([], [0])


def test_other_errors_are_not_waited_for(pauses: list[float]) -> None:
    with pytest.raises(ZeroDivisionError):
        await_database(lambda: 1 // 0, URL, 60)
    assert pauses == []


def test_schema_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    monkeypatch.setattr("shared.db.waiting.time.sleep", lambda _: migrate(url))
    with closing(Database(url)) as database, capture_logs() as logs:
        await_schema(database, 60)
    [waited] = [line["cause"] for line in logs if line["event"] == "waiting_for_database"]
    assert waited.startswith(f"it has no tables, and this version needs {newest_migration()}")


def test_older_schema_is_waited_for_and_a_newer_one_is_not(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    migrate(url)
    with closing(Database(url)) as database:
        set_schema(url, "0001")
        with pytest.raises(Unavailable, match="it has schema 0001, and this version needs"):
            await_schema(database, 0)
        set_schema(url, "9999")
        await_schema(database, 0)


def set_schema(url: str, number: str) -> None:
    with opened(url) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :number"), {"number": number})


def test_newest_migration_is_the_head_of_alembic(tmp_path: Path) -> None:
    with opened(f"sqlite:///{tmp_path / 'store.db'}") as connection:
        assert read_schema(connection).needed == newest_migration()


def test_worker_and_engine_filter_wait(refusing: str, monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> None:
    monkeypatch.setenv("AW_DATABASE_URL", refusing)
    monkeypatch.setenv("AW_DATABASE_WAIT_SECONDS", "0.01")
    shared, settings = Settings(), WorkerSettings()
    for start in (lambda: make_context(shared, settings, app), lambda: make_policy(shared, settings)):
        with pytest.raises(Unavailable, match="refused") as ended:
            start()
        assert "hush" not in str(ended.value)
    assert len(pauses) > 2


def test_address_of_a_node_waits_for_the_name_of_the_database(
    monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    responses = iter([socket.gaierror(-3, "Temporary failure in name resolution")])

    def find(url: str) -> str:
        assert url == URL
        for error in responses:
            raise error
        return "10.0.0.1"

    monkeypatch.setattr("deploy.service.node_address.find_address", find)
    assert await_address(URL, 60) == "10.0.0.1"
    assert pauses == [0.5]

"""Logs that were read before the database's clock was set back do not stand in the way of later ones."""

from datetime import datetime

import pytest

from shared.clock import after, now
from shared.container_logs import kept_logs
from shared.container_logs.kept_logs import MAX_CONTAINERS, NO_CONTAINER, LogCause
from shared.db.database import Database
from shared.models import SandboxLog
from tests.factories import ApiUser, make_sandbox

HOUR = 3600.0


@pytest.fixture
def sandbox_id(database: Database, user: ApiUser) -> str:
    return make_sandbox(database, user).id


def keep(database: Database, sandbox_id: str, container: str, text: str, at: datetime) -> None:
    with database.transaction() as session:
        log = SandboxLog(sandbox_id=sandbox_id, owner_id="u", container_id=container, text=text, expires_at=after(60))
        log.read_at, log.cause = at, LogCause.FAILED
        kept_logs.keep(session, log)


def stored_logs(database: Database, sandbox_id: str) -> list[tuple[str, str]]:
    with database.reading() as session:
        return [(log.container_id, log.text) for log in kept_logs.list_kept(session, sandbox_id)]


def last_reading(database: Database, sandbox_id: str) -> datetime | None:
    with database.reading() as session:
        return kept_logs.find_last_reading(session, sandbox_id)


def test_log_of_a_crash_replaces_the_former_reading(database: Database, sandbox_id: str) -> None:
    keep(database, sandbox_id, "c1", "it runs", after(HOUR))
    assert last_reading(database, sandbox_id) is None
    moment = now()
    keep(database, sandbox_id, "c1", "it crashed", moment)
    assert (stored_logs(database, sandbox_id), last_reading(database, sandbox_id)) == ([("c1", "it crashed")], moment)


@pytest.mark.parametrize("container", ["c1", NO_CONTAINER])
def test_reading_of_a_later_container_is_the_last_reading(database: Database, sandbox_id: str, container: str) -> None:
    keep(database, sandbox_id, "c0", "former", after(HOUR))
    moment = now()
    keep(database, sandbox_id, container, "later", moment)
    assert last_reading(database, sandbox_id) == moment


def test_new_containers_replace_those_with_former_readings(database: Database, sandbox_id: str) -> None:
    for number in range(MAX_CONTAINERS):
        keep(database, sandbox_id, f"before {number}", "former", after(HOUR + number))
    for number in range(2):
        keep(database, sandbox_id, f"after {number}", "later", now())
    assert [container for container, _ in stored_logs(database, sandbox_id)] == [
        f"before {MAX_CONTAINERS - 1}",
        "after 0",
        "after 1",
    ]


def test_reading_by_a_slightly_faster_clock_is_not_replaced(database: Database, sandbox_id: str) -> None:
    moment = after(1)
    keep(database, sandbox_id, "c1", "newer", moment)
    keep(database, sandbox_id, "c1", "older", now())
    assert (stored_logs(database, sandbox_id), last_reading(database, sandbox_id)) == ([("c1", "newer")], moment)

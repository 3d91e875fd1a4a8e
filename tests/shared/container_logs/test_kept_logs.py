"""A few logs of each sandbox are kept for a limited time, and an older reading never replaces a newer one."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlmodel import select

from shared.clock import after
from shared.container_logs import kept_logs
from shared.container_logs.kept_logs import MAX_CONTAINERS, NO_CONTAINER, LogCause
from shared.container_logs.selection import select_lines
from shared.db.database import Database
from shared.models import SandboxLog
from tests.due_checks import is_due
from tests.factories import ApiUser, make_sandbox

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def sandbox_id(database: Database, user: ApiUser) -> str:
    return make_sandbox(database, user).id


def keep(
    database: Database,
    sandbox_id: str,
    text: str,
    *,
    at: float = 0,
    container: str = "c1",
    cause: LogCause | None = None,
    seconds: float = 60,
) -> None:
    with database.transaction() as session:
        log = SandboxLog(
            sandbox_id=sandbox_id,
            owner_id="u",
            container_id=container,
            cause=cause,
            text=text,
            expires_at=after(seconds),
        )
        log.read_at = BEGAN + timedelta(seconds=at)
        kept_logs.keep(session, log)


def stored_logs(database: Database, sandbox_id: str) -> list[tuple[str, str, str | None]]:
    with database.reading() as session:
        return [(log.container_id, log.text, log.cause) for log in kept_logs.list_kept(session, sandbox_id)]


def test_repeated_write_is_idempotent(database: Database, sandbox_id: str) -> None:
    """A worker may die after it has stored the log and before it has removed the container."""
    for at in (0, 1):
        keep(database, sandbox_id, "the log", at=at, cause=LogCause.REMOVED)
    assert stored_logs(database, sandbox_id) == [("c1", "the log", "removed")]


def test_logs_of_other_sandboxes_are_not_returned(database: Database, user: ApiUser, sandbox_id: str) -> None:
    other_id = make_sandbox(database, user).id
    keep(database, sandbox_id, "mine", at=1)
    keep(database, other_id, "another's", at=2)
    assert stored_logs(database, sandbox_id) == [("c1", "mine", None)]
    assert stored_logs(database, other_id) == [("c1", "another's", None)]
    with database.reading() as session:
        assert kept_logs.find_last_reading(session, sandbox_id) == BEGAN + timedelta(seconds=1)


def test_older_reading_does_not_replace_a_newer_one(database: Database, sandbox_id: str) -> None:
    keep(database, sandbox_id, "at its end", at=5, cause=LogCause.REMOVED)
    keep(database, sandbox_id, "while it ran", at=4)
    assert stored_logs(database, sandbox_id) == [("c1", "at its end", "removed")]


def test_cause_of_a_failure_stays_until_the_container_runs_again(database: Database, sandbox_id: str) -> None:
    keep(database, sandbox_id, "failed", cause=LogCause.FAILED)
    keep(database, sandbox_id, "read again", at=1, cause=LogCause.EXITED)
    assert stored_logs(database, sandbox_id) == [("c1", "read again", "failed")]
    keep(database, sandbox_id, "runs", at=2)
    assert stored_logs(database, sandbox_id) == [("c1", "runs", None)]


def test_last_containers_are_kept(database: Database, sandbox_id: str) -> None:
    for number in range(MAX_CONTAINERS + 3):
        keep(database, sandbox_id, f"log {number}", at=number, container=f"c{number}")
        keep(database, sandbox_id, "", at=number, container=NO_CONTAINER)
    expected = range(3, MAX_CONTAINERS + 3)
    assert stored_logs(database, sandbox_id) == [(f"c{number}", f"log {number}", None) for number in expected]


def test_last_containers_of_an_owner_are_kept(
    database: Database, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_logs, "MAX_OF_OWNER", 2)
    sandboxes = [make_sandbox(database, user).id for _ in range(4)]
    for number, sandbox_id in enumerate(sandboxes):
        keep(database, sandbox_id, "log", at=number)
    assert [len(stored_logs(database, sandbox_id)) for sandbox_id in sandboxes] == [0, 0, 1, 1]


def test_expired_logs_are_deleted(database: Database, sandbox_id: str) -> None:
    keep(database, sandbox_id, "old", seconds=-1)
    keep(database, sandbox_id, "new", container="c2")
    with database.transaction() as session:
        assert is_due(session, kept_logs.EXPIRED)
        kept_logs.delete_expired(session)
        assert not is_due(session, kept_logs.EXPIRED)
        assert session.exec(select(SandboxLog.text)).all() == ["new"]


def log_of(container: str, text: str) -> SandboxLog:
    return SandboxLog(sandbox_id="s", owner_id="u", container_id=container, text=text, expires_at=BEGAN)


def lines_of(number: int, texts: str) -> str:
    return "".join(f"2026-01-0{number}T00:00:00.{place:09}Z {text}\n" for place, text in enumerate(texts))


def test_selection_has_the_last_lines_of_all_containers() -> None:
    logs = [log_of(f"c{number}", lines_of(number, "abc")) for number in (1, 2)]
    selection = select_lines(logs, tail=4)
    shown = [("".join(line.text for line in each.lines), each.is_cut) for each in selection.shown]
    assert shown == [("c", True), ("abc", False)]
    assert selection.cursor == "2026-01-02T00:00:00.000000002Z"


def test_selection_after_a_cursor_has_the_new_lines() -> None:
    log = log_of("c1", lines_of(1, "ab"))
    cursor = select_lines([log], tail=10).cursor
    assert select_lines([log], tail=10, after=cursor).shown[0].lines == []
    log.text = lines_of(1, "abcd")
    later = select_lines([log], tail=10, after=cursor)
    assert [line.text for line in later.shown[0].lines] == ["c", "d"]
    assert select_lines([], tail=10, after=cursor).cursor == cursor
    assert select_lines([], tail=10).cursor is None


def test_lines_after_a_clock_was_set_back_follow_once() -> None:
    log = SandboxLog(sandbox_id="1", owner_id="u", container_id="c", text="10:59 a\n11:00 b\n", expires_at=after(1))
    cursor, followed = select_lines([log], tail=10).cursor, ""
    for more in ("09:00 c\n", "09:01 d\n09:02 e\n", "", "11:01 f\n"):
        log.text += more
        shown = select_lines([log], tail=10, after=cursor)
        cursor, followed = shown.cursor, followed + "".join(line.text for line in shown.shown[0].lines)
    assert followed == "cdef"


def test_line_without_an_end_hides_no_other_line() -> None:
    """The unfinished line is last in the log, and it has the time of its last part."""
    log = SandboxLog(sandbox_id="1", owner_id="u", container_id="c", text="10:02 b\n10:01 a…\n", expires_at=after(1))
    cursor = select_lines([log], tail=10).cursor
    followed: list[str] = []
    for log.text in ("10:02 b\n10:03 c\n10:01 a…\n", "10:02 b\n10:03 c\n10:04 a.\n"):
        shown = select_lines([log], tail=10, after=cursor)
        cursor = shown.cursor
        followed += [line.text for line in shown.shown[0].lines]
    assert followed == ["c", "a."]

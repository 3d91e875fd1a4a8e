"""The operators' lists: every sandbox is on one page, in order, and a page reads few rows of an index."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event

from shared.admin import nodes, overview, sandbox_lists, users
from shared.admin.sandbox_lists import SandboxFilter
from shared.clock import now
from shared.db.database import Database
from shared.errors import Invalid
from shared.models import Sandbox
from shared.states import Reason, Status
from shared.users import audit
from tests.factories import ApiUser, make_sandbox, make_start_task
from tests.shared.db.plans import plans_of_sessions

EVERYTHING = SandboxFilter()


@pytest.fixture
def sandboxes(database: Database, user: ApiUser, other_user: ApiUser) -> list[Sandbox]:
    """Twelve sandboxes, the newest first: of two users, of two nodes, each third deleted, each fourth failed."""
    found = []
    for number in range(12):
        at = now() - timedelta(minutes=number)
        status = Status.DELETED if number % 3 == 2 else Status.ERROR if number % 4 == 1 else Status.RUNNING
        owner = user if number % 2 else other_user
        failed = {"reason": Reason.EXIT_CODE} if status == Status.ERROR else {}
        node_id = f"node-{number % 2}"
        found.append(
            make_sandbox(database, owner, status=status, node_id=node_id, created_at=at, status_changed_at=at, **failed)
        )
    return found


def search(database: Database, which: SandboxFilter, limit: int) -> list[str]:
    """The ids of all pages."""
    found, page_id = [], None
    while True:
        with database.reading() as session:
            page = sandbox_lists.search(session, which, page_id, limit)
        found += [entry.sandbox.id for entry in page.items]
        if page.next_page_id is None:
            return found
        page_id = page.next_page_id


def test_requests_of_starts_are_not_loaded(database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user)
    task = make_start_task(database, user, sandbox, request={"title": "x"}, secrets="sealed")
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, text: str, *_: Any) -> None:
        statements.append(text)

    event.listen(database.engine, "before_cursor_execute", note)
    with database.reading() as session:
        history = sandbox_lists.read_history(session, sandbox.id)
        [waiting] = overview.waiting_starts(session)
    event.remove(database.engine, "before_cursor_execute", note)
    assert [row.id for row in (*history.starts, waiting.task)] == [task.id, task.id]
    assert [text for text in statements if "start_task.request" in text or "start_task.secrets" in text] == []


@pytest.mark.parametrize("examined", [5_000, 4, 1])
@pytest.mark.parametrize(
    ("which", "numbers"),
    [
        (EVERYTHING, (0, 1, 3, 4, 6, 7, 9, 10)),
        (SandboxFilter(status=Status.DELETED), (2, 5, 8, 11)),
        (SandboxFilter(status=Status.ERROR), (1, 9)),
        (SandboxFilter(status=Status.RUNNING), (0, 3, 4, 6, 7, 10)),
        (SandboxFilter(owner="alice"), (1, 3, 7, 9)),
        (SandboxFilter(owner="alice", status=Status.DELETED), (5, 11)),
        (SandboxFilter(owner="unknown"), ()),
        (SandboxFilter(node="node-0"), (0, 4, 6, 10)),
        (SandboxFilter(reason="exit_code"), (1, 9)),
        (SandboxFilter(reason="exit_code", node="node-0"), ()),
    ],
)
def test_pages_hold_each_match_once(
    database: Database,
    sandboxes: list[Sandbox],
    monkeypatch: pytest.MonkeyPatch,
    which: SandboxFilter,
    numbers: tuple[int, ...],
    examined: int,
) -> None:
    monkeypatch.setattr(sandbox_lists, "MAX_EXAMINED", examined)
    assert search(database, which, 3) == [sandboxes[number].id for number in numbers]


def test_page_of_another_list_is_refused(database: Database, sandboxes: list[Sandbox]) -> None:
    with database.reading() as session:
        page = sandbox_lists.search(session, EVERYTHING, None, 2)
        assert page.items[0].sandbox.id == sandboxes[0].id
        with pytest.raises(Invalid):
            sandbox_lists.search(session, SandboxFilter(status=Status.ERROR), page.next_page_id, 2)


@pytest.fixture
def plans(database: Database) -> Iterator[list[str]]:
    """Collect the plans of the test's queries. Sequential scans are turned off, because the tables are almost empty."""

    def disable_sequential_scans(connection: Any, _record: Any) -> None:
        connection.execute("SET enable_seqscan = off")
        connection.commit()

    if database.engine.dialect.name == "postgresql":
        event.listen(database.engine, "connect", disable_sequential_scans)
        database.engine.dispose()
    with plans_of_sessions(database) as plans:
        yield plans


@pytest.mark.usefixtures("sandboxes")
def test_every_query_about_sandboxes_uses_an_index(database: Database, plans: list[str]) -> None:
    for which in (EVERYTHING, *map(SandboxFilter, Status), SandboxFilter(owner="alice"), SandboxFilter(node="node-0")):
        search(database, which, 3)
    with database.reading() as session:
        [entry] = sandbox_lists.search(session, EVERYTHING, None, 1).items
        sandbox_lists.read_history(session, entry.sandbox.id)
        for read in (
            *(overview.count_sandboxes, overview.backlogs, overview.waiting_sandboxes, overview.waiting_starts),
            *(overview.failures, overview.pools, nodes.list_nodes),
        ):
            read(session)
        users.read_user(session, users.search_users(session, None, 10).items[0].user.name)
        audit.search(session, None, 10)
    tables = ("sandbox", "sandbox_transition", "conversation", "start_task", "api_key", "audit_entry")
    scans = [f"{words} {table}" for table in tables for words in ("SCAN", "Seq Scan on")]
    bad = [plan for plan in plans for line in plan.split("\n") if any(reads_all(line, scan) for scan in scans)]
    assert len(plans) > 20
    assert bad == []


def reads_all(line: str, scan: str) -> bool:
    """Whether a line of a plan is a full scan of a table."""
    return f"{line.strip()} ".startswith((f"{scan} ", f"-> {scan} ", f"->  {scan} ")) and "INDEX" not in line

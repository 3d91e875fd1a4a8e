"""What distinguishes transactions whose commits have the same name."""

from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from sqlalchemy import Engine, create_engine, event, text

from tests.drills.faults.statements import WrittenStatements

BEFORE, AFTER = "job/1/database.commit.before", "job/1/database.commit.after"
CLAIM = "UPDATE work SET owner = :owner"
CHANGE = "UPDATE work SET status = :status"


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    engine = create_engine(f"sqlite:///{tmp_path}/work.sqlite")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE work (owner TEXT, status TEXT)"))
    return engine


@pytest.fixture
def statements() -> Iterator[WrittenStatements]:
    found = WrittenStatements()
    yield found
    event.remove(Engine, "before_cursor_execute", found._add)


def content(engine: Engine, statements: WrittenStatements, statement: str, **values: object) -> str:
    with engine.begin() as connection:
        connection.execute(text("SELECT * FROM work"))
        connection.execute(text(statement), values)
        found = statements.content(BEFORE)
    assert statements.content(AFTER) == found != ""
    return found


def test_transactions_differ_by_columns_and_words_but_not_by_ids(engine: Engine, statements: WrittenStatements) -> None:
    claim = content(engine, statements, CLAIM, owner="worker-1")
    assert claim == content(engine, statements, CLAIM, owner="worker-2")
    assert len({claim, *(content(engine, statements, CHANGE, status=each) for each in ("RUNNING", "PAUSED"))}) == 3


def test_transactions_of_other_threads_do_not_count(engine: Engine, statements: WrittenStatements) -> None:
    alone = content(engine, statements, CLAIM, owner="")
    found: list[str] = []
    with engine.begin() as connection:
        connection.execute(text(CLAIM), {"owner": ""})
        thread = Thread(target=lambda: found.append(statements.content(BEFORE)))
        thread.start()
        thread.join()
        assert (statements.content(BEFORE), found) == (alone, [""])


def test_commit_without_writes_has_no_content(engine: Engine, statements: WrittenStatements) -> None:
    with engine.begin() as connection:
        connection.execute(text("SELECT * FROM work"))
    assert statements.content(BEFORE) == ""

"""Transactions, on both databases."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest
from sqlalchemy.exc import StatementError
from sqlmodel import Session, select

from shared.clock import now
from shared.database import Database
from shared.models import Node, User
from tests.factories import Person, make_conversation, make_event, make_node, make_sandbox


def names(database: Database) -> list[str]:
    with database.reading() as session:
        return sorted(session.exec(select(User.name)).all())


def test_a_transaction_commits_at_its_end(database: Database) -> None:
    with database.transaction() as session:
        session.add(User(name="a"))
    assert names(database) == ["a"]


def test_an_error_undoes_the_transaction(database: Database) -> None:
    def fail(session: Session) -> None:
        session.add(User(name="a"))
        session.flush()
        raise RuntimeError

    with pytest.raises(RuntimeError), database.transaction() as session:
        fail(session)
    assert names(database) == []


def test_what_a_reader_writes_is_thrown_away(database: Database) -> None:
    with database.reading() as session:
        session.add(User(name="a"))
        session.flush()
    assert names(database) == []


def test_rows_are_usable_after_their_session(database: Database, user: Person) -> None:
    with database.transaction() as session:
        row = session.get_one(User, user.id)
    assert row.name == user.name


def test_writers_that_read_first_wait_for_each_other(database: Database) -> None:
    make_node(database, "a", capacity=0)

    def add_one(_number: int) -> None:
        with database.transaction() as session:
            node = _locked(session)
            node.capacity += 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add_one, range(40)))
    with database.reading() as session:
        assert _locked(session).capacity == 40


def _locked(session: Session) -> Node:
    return session.get_one(Node, "a", with_for_update=True)


def test_times_come_back_in_utc_to_the_microsecond(database: Database, user: Person) -> None:
    at = datetime(2026, 11, 20, 1, 2, 3, 456789, tzinfo=timezone(timedelta(hours=5)))
    with database.transaction() as session:
        session.get_one(User, user.id).created_at = at
    with database.reading() as session:
        stored = session.get_one(User, user.id).created_at
    assert stored == at
    assert stored.utcoffset() == timedelta(0)


def test_a_naive_time_is_refused(database: Database, user: Person) -> None:
    with pytest.raises(StatementError, match="naive"), database.transaction() as session:
        session.get_one(User, user.id).created_at = now().replace(tzinfo=None)


def test_a_document_may_hold_anything_json_can(database: Database, user: Person) -> None:
    body = {"nul": "\x00", "half": "\ud800", "wide": "🙂", "deep": [{"x": None}], "big": 2**70}
    conversation = make_conversation(database, user, make_sandbox(database, user))
    event = make_event(database, conversation, body=body)
    with database.reading() as session:
        assert session.get_one(type(event), event.seq).body == body

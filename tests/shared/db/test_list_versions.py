"""A user's lists get a new version with each transaction that changes their content, for every writer."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Boolean, Column, DateTime, Float, Integer, Table, delete, text, update
from sqlalchemy.sql import visitors
from sqlmodel import Session, SQLModel, select

from shared.conversations import lists as conversation_lists
from shared.db.database import Database
from shared.models import Conversation, ListVersion
from shared.models.columns import Json, UtcDateTime
from shared.sandboxes import lists as sandbox_lists
from shared.states import DeadlineAction, Desired, Status
from shared.users import api_keys
from tests.factories import SPEC_ID, VAULT, ApiUser, make_conversation, make_sandbox, make_spec, make_user
from tests.rows import as_stored
from tests.services.stores import PostgresStores
from tests.waiting import eventually


def columns_of_lists() -> Iterator[Column[Any]]:
    """Each column that a list or its count uses: to show, filter, join or sort."""
    orders = {conversation_lists._LIST: conversation_lists.SORT_ORDERS.values()}
    for one in (conversation_lists._LIST, sandbox_lists._LIST):
        names = frozenset(one.filters)
        pages = [one._page(names, order, paged=True) for order in orders.get(one, [sandbox_lists.NEWEST_FIRST])]
        for statement in (*pages, one._count(names)):
            for element in visitors.iterate(statement):
                for column in getattr(element, "base_columns", ()):
                    if isinstance(column, Column):
                        yield column


SHOWN = sorted({(column.table.name, column.name) for column in columns_of_lists() if column.name != "id"})
TABLES: dict[str, Table] = {
    name: SQLModel.metadata.tables[name] for name in ("conversation", "sandbox", "sandbox_spec")
}
OTHERS = {
    "status": Status.PAUSED,
    "desired": Desired.PAUSED,
    "deadline_does": DeadlineAction.FREEZE,
}


@pytest.fixture
def version(database: Database) -> Callable[[ApiUser], str | None]:
    """Read the version of a user's lists."""

    def version(user: ApiUser) -> str | None:
        [holder] = api_keys.authenticate(database, VAULT, [user.key])
        assert holder is not None
        return holder.list_version

    return version


@pytest.fixture
def rows(database: Database, user: ApiUser) -> dict[str, str]:
    """The id of a row in each table."""
    sandbox = make_sandbox(database, user)
    return {
        "conversation": make_conversation(database, user, sandbox).id,
        "sandbox": sandbox.id,
        "sandbox_spec": SPEC_ID,
    }


def other_value(database: Database, user: ApiUser, other_user: ApiUser, column: Column[Any]) -> Any:
    references = {
        "owner_id": lambda: other_user.id,
        "sandbox_id": lambda: make_sandbox(database, user).id,
        "spec_id": lambda: make_spec(database, "another").id,
    }
    if column.name in references:
        return references[column.name]()
    kinds: list[tuple[Any, Any]] = [
        (Boolean, column.name == "public"),
        (Integer, 12_345),
        (Float, 0.5),
        ((DateTime, UtcDateTime), datetime(2020, 2, 2, tzinfo=UTC)),
        (Json, [1]),
    ]
    value = next((value for kind, value in kinds if isinstance(column.type, kind)), "another")
    return OTHERS.get(column.name, value)


def write(database: Database, statement: Any) -> None:
    with database.engine.execution_options(writing=True).begin() as connection:
        connection.execute(statement)


def test_list_columns_are_all_known() -> None:
    assert {table for table, _ in SHOWN} == TABLES.keys()
    assert {("conversation", "parent_id"), ("conversation", "listed"), ("sandbox", "session_key")} < set(SHOWN)
    assert ("sandbox_spec", "max_age_seconds") in SHOWN


def test_no_column_of_a_sandbox_is_read_twice() -> None:
    assert len(sandbox_lists.SHOWN) == len(set(sandbox_lists.SHOWN))


@pytest.mark.parametrize(("table", "name"), SHOWN, ids=[".".join(one) for one in SHOWN])
def test_change_of_a_listed_column_changes_the_version(
    database: Database,
    user: ApiUser,
    other_user: ApiUser,
    version: Callable[[ApiUser], str | None],
    rows: dict[str, str],
    table: str,
    name: str,
) -> None:
    column = TABLES[table].c[name]
    other = other_value(database, user, other_user, column)
    make_sandbox(database, other_user)
    before, of_others = version(user), version(other_user)
    change = update(TABLES[table]).where(TABLES[table].c.id == rows[table]).values({name: other})
    write(database, change)
    after = version(user)
    assert None not in (before, after)
    assert after != before
    assert (version(other_user) == of_others) == (name != "owner_id" and table != "sandbox_spec")
    write(database, change)
    assert version(user) == after  # the same value again is no change


def test_inserts_and_deletes_change_the_version(
    database: Database, user: ApiUser, version: Callable[[ApiUser], str | None]
) -> None:
    seen = {version(user)}
    sandbox = make_sandbox(database, user)
    seen.add(version(user))
    conversation = make_conversation(database, user, sandbox)
    seen.add(version(user))
    for table, row_id in (("conversation", conversation.id), ("sandbox", sandbox.id)):
        write(database, delete(TABLES[table]).where(TABLES[table].c.id == row_id))
        seen.add(version(user))
    assert len(seen) == 5


def test_change_that_no_list_shows_leaves_the_version(
    database: Database, user: ApiUser, version: Callable[[ApiUser], str | None], rows: dict[str, str]
) -> None:
    before = version(user)
    quiet = {"lease_owner": "w", "fence": 7, "due_at": datetime(2020, 2, 2, tzinfo=UTC)}
    for table in ("sandbox", "conversation"):
        write(database, update(TABLES[table]).where(TABLES[table].c.id == rows[table]).values(quiet))
    write(database, update(TABLES["sandbox_spec"]).values({"warm_failures": 3}))
    make_sandbox(database, user, owner_id=None)
    assert version(user) == before


def retitle(session: Session, conversation_id: str, title: str) -> None:
    session.get_one(Conversation, conversation_id).title = title
    session.flush()


def test_change_that_is_rolled_back_leaves_the_version(
    database: Database, user: ApiUser, version: Callable[[ApiUser], str | None], rows: dict[str, str]
) -> None:
    before = version(user)
    with suppress(ZeroDivisionError), database.transaction() as session:
        retitle(session, rows["conversation"], "another")
        raise ZeroDivisionError
    with database.transaction() as session, suppress(ZeroDivisionError), session.begin_nested():
        retitle(session, rows["conversation"], "a third")
        raise ZeroDivisionError
    assert version(user) == before


def test_change_beside_a_rolled_back_savepoint_counts(
    database: Database, user: ApiUser, version: Callable[[ApiUser], str | None], rows: dict[str, str]
) -> None:
    before = version(user)
    with database.transaction() as session:
        retitle(session, rows["conversation"], "another")
        with suppress(ZeroDivisionError), session.begin_nested():
            retitle(session, rows["conversation"], "a third")
            raise ZeroDivisionError
    assert version(user) != before


def test_change_of_owner_changes_both_versions(
    database: Database,
    user: ApiUser,
    other_user: ApiUser,
    version: Callable[[ApiUser], str | None],
    rows: dict[str, str],
) -> None:
    before = version(user), version(other_user)
    with database.transaction() as session:
        conversation = session.get_one(Conversation, rows["conversation"])
        for owner in (other_user, user, other_user, user):
            conversation.owner_id = owner.id
            session.flush()
    assert version(user) != before[0]
    assert version(other_user) != before[1]


def test_change_becomes_visible_with_its_version(
    database: Database, user: ApiUser, version: Callable[[ApiUser], str | None], rows: dict[str, str]
) -> None:
    before = version(user)
    with database.transaction() as session:
        retitle(session, rows["conversation"], "another")
        assert version(user) == before
    assert version(user) != before


@pytest.fixture
def server(postgres_stores: PostgresStores) -> Iterator[Database]:
    """A database on PostgreSQL, where writers run concurrently."""
    with postgres_stores.fresh() as url:
        database = Database(url)
        yield database
        database.close()


def test_transaction_blocks_no_other_before_its_commit(server: Database) -> None:
    user = make_user(server, "alice")
    first, second = (make_conversation(server, user, make_sandbox(server, user)) for _ in range(2))
    with server.transaction() as session:
        retitle(session, first.id, "slow")
        with server.transaction() as other:
            other.execute(text("SET LOCAL lock_timeout = '10s'"))
            retitle(other, second.id, "quick")
        assert [as_stored(server, one).title for one in (first, second)] == [first.title, "quick"]
    assert as_stored(server, first).title == "slow"


def test_versions_are_locked_in_one_order(server: Database) -> None:
    users = sorted((make_user(server, name) for name in ("alice", "bob")), key=lambda user: user.id)
    rows = [make_conversation(server, user, make_sandbox(server, user)).id for user in users]
    of_the_first, of_the_last = (select(ListVersion).where(ListVersion.owner_id == user.id) for user in users)

    def change_both() -> None:
        with server.transaction() as session:
            for row_id in reversed(rows):
                retitle(session, row_id, "another")

    with ThreadPoolExecutor(1) as pool:
        with server.transaction() as holding:
            holding.exec(of_the_first.with_for_update()).one()
            changing = pool.submit(change_both)
            eventually(lambda: changing.done() or _has_lock_waiter(server))
            assert not changing.done()
            with server.reading() as looking:  # no other transaction has this lock yet
                assert looking.exec(of_the_last.with_for_update(nowait=True)).one()
        changing.result(30)


def _has_lock_waiter(database: Database) -> bool:
    with database.reading() as session:
        waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        return bool(session.execute(waiting).scalar_one())

"""One name for each engine, and one engine for each name."""

from datetime import timedelta

import pytest
from sqlalchemy.exc import IntegrityError

from shared.clock import now
from shared.db.database import Database
from shared.errors import Conflict
from shared.models import Node
from shared.nodes import placement
from shared.nodes import registry as node_registry
from tests.factories import make_node

SILENT = placement.HEARTBEAT_LIMIT + timedelta(seconds=1)


def beat(database: Database, node_id: str, engine_id: str | None, problem: str | None = None) -> str | None:
    with database.transaction() as session:
        return node_registry.beat(session, node_id, capacity=1, problem=problem, engine_id=engine_id)


def engines(database: Database) -> dict[str, str | None]:
    with database.reading() as session:
        return {node.id: node.engine_id for node in node_registry.list_nodes(session)}


def test_a_node_keeps_the_engine_it_was_first_seen_with(database: Database) -> None:
    make_node(database, "a")  # as one of before engines were told apart
    assert beat(database, "a", "one") is None
    assert beat(database, "a", "one") is None
    assert beat(database, "a", None, problem="down") is None
    assert engines(database) == {"a": "one"}


@pytest.mark.parametrize("silent", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_a_second_name_for_an_engine_is_refused(database: Database, silent: bool, known: bool) -> None:
    beat(database, "a", "one")
    if known:
        make_node(database, "b", engine_id="two", heartbeat_at=now() - SILENT)
    if silent:
        with database.transaction() as session:
            session.get_one(Node, "a").heartbeat_at = now() - SILENT
    with pytest.raises(Conflict, match="AW_NODE=a"):
        beat(database, "b", "one")
    assert engines(database) == {"a": "one"} | ({"b": "two"} if known else {})


def test_name_that_is_alive_is_refused_to_another_engine(database: Database) -> None:
    beat(database, "a", "one")
    with pytest.raises(Conflict, match="an AW_NODE of its own"):
        beat(database, "a", "two")
    assert engines(database) == {"a": "one"}


def test_a_name_that_was_silent_may_get_another_engine(database: Database) -> None:
    make_node(database, "a", engine_id="one", heartbeat_at=now() - SILENT)
    assert beat(database, "a", "two") == "one"
    assert beat(database, "a", "two") is None
    assert engines(database) == {"a": "two"}


def test_the_database_holds_it_too(database: Database) -> None:
    make_node(database, "a", engine_id="one")
    with pytest.raises(IntegrityError):
        make_node(database, "b", engine_id="one")

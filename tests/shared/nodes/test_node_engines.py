"""One node for each engine, and one engine for each node."""

from datetime import timedelta

import pytest
from sqlalchemy.exc import IntegrityError

from shared.clock import now
from shared.db.database import Database
from shared.errors import Conflict
from shared.models import Node
from shared.nodes import placement
from shared.nodes import registry as node_registry
from shared.states import NodeStatus
from tests.factories import make_node

SILENT = placement.HEARTBEAT_LIMIT + timedelta(seconds=1)
# The second one was sent before the database's clock was set back.
AGES = [SILENT, -timedelta(hours=1)]


def send_heartbeat(database: Database, node_id: str, engine_id: str | None, problem: str | None = None) -> str | None:
    with database.transaction() as session:
        return node_registry.record_heartbeat(session, node_id, capacity=1, problem=problem, engine_id=engine_id)


def engines(database: Database) -> dict[str, str | None]:
    with database.reading() as session:
        return {node.id: node.engine_id for node in node_registry.list_nodes(session)}


def test_node_keeps_its_first_engine(database: Database) -> None:
    make_node(database, "a")  # registered before engines had ids
    assert send_heartbeat(database, "a", "one") is None
    assert send_heartbeat(database, "a", "one") is None
    assert send_heartbeat(database, "a", None, problem="down") is None
    assert engines(database) == {"a": "one"}


@pytest.mark.parametrize("silent", [True, False])
@pytest.mark.parametrize("is_registered", [True, False])
def test_second_node_of_an_engine_conflicts(database: Database, silent: bool, is_registered: bool) -> None:
    send_heartbeat(database, "a", "one")
    if is_registered:
        make_node(database, "b", engine_id="two", heartbeat_at=now() - SILENT)
    if silent:
        with database.transaction() as session:
            session.get_one(Node, "a").heartbeat_at = now() - SILENT
    with pytest.raises(Conflict, match="AW_NODE=a"):
        send_heartbeat(database, "b", "one")
    assert engines(database) == {"a": "one"} | ({"b": "two"} if is_registered else {})


def test_live_node_conflicts_with_another_engine(database: Database) -> None:
    send_heartbeat(database, "a", "one")
    with pytest.raises(Conflict, match="an AW_NODE of its own"):
        send_heartbeat(database, "a", "two")
    assert engines(database) == {"a": "one"}


@pytest.mark.parametrize("age", AGES)
def test_silent_node_may_get_another_engine(database: Database, age: timedelta) -> None:
    make_node(database, "a", engine_id="one", heartbeat_at=now() - age)
    assert send_heartbeat(database, "a", "two") == "one"
    assert send_heartbeat(database, "a", "two") is None
    assert engines(database) == {"a": "two"}


@pytest.mark.parametrize("age", AGES)
def test_problem_of_a_silent_node_is_reported(database: Database, age: timedelta) -> None:
    make_node(database, "a", heartbeat_at=now() - age)
    with database.transaction() as session:
        assert not node_registry.has_heartbeat(session, "a")
        node_registry.report_problem(session, "a", "its clock is wrong")
        assert session.get_one(Node, "a").status == NodeStatus.LOST


def test_engine_is_unique_in_the_database(database: Database) -> None:
    make_node(database, "a", engine_id="one")
    with pytest.raises(IntegrityError):
        make_node(database, "b", engine_id="one")

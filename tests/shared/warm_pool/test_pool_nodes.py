"""Warm sandboxes of nodes that take no sandboxes: removed if an operator decided it, otherwise kept."""

from collections.abc import Callable
from typing import Any

import pytest

from shared.clock import after, now
from shared.db.database import Database
from shared.models import Node, Sandbox
from shared.states import Desired, NodeStatus, Reason, Status
from tests.factories import ApiUser
from tests.shared.warm_pool.pools import claim, reconcile


def change_node(database: Database, **columns: Any) -> None:
    with database.transaction() as session:
        node = session.get_one(Node, "node-b")
        for name, value in columns.items():
            setattr(node, name, value)


def test_warm_sandboxes_of_a_cordoned_node_are_removed(
    database: Database, owner: ApiUser, add: Callable[..., str]
) -> None:
    warm = add(node_id="node-b")
    change_node(database, status=NodeStatus.CORDONED)
    with database.transaction() as session:
        assert claim(session, owner).id != warm
    assert (warm, Desired.DELETED) in reconcile(database)
    with database.reading() as session:
        assert session.get_one(Sandbox, warm).desired_reason == Reason.RETIRED


@pytest.mark.parametrize(
    "columns",
    [{"status": NodeStatus.LOST}, {"heartbeat_at": after(-25)}, {"closed_reason": "its disk is full"}],
    ids=["lost", "silent", "closed"],
)
def test_warm_sandboxes_of_a_node_that_may_return_are_replaced_and_kept(
    database: Database, owner: ApiUser, add: Callable[..., str], columns: dict[str, Any]
) -> None:
    kept = {add(node_id="node-b"), add(node_id="node-b")}
    change_node(database, **columns)
    with database.transaction() as session:
        assert claim(session, owner).id not in kept
    replacements = reconcile(database)
    assert [desired for _, desired in replacements] == [Desired.RUNNING] * 2
    assert reconcile(database) == []
    change_node(database, status=NodeStatus.READY, heartbeat_at=now(), closed_reason=None)
    assert {row_id for row_id, _ in reconcile(database)} == {row_id for row_id, _ in replacements}
    with database.transaction() as session:
        assert claim(session, owner).id in kept


def test_pool_is_kept_while_no_node_takes_sandboxes(database: Database, add: Callable[..., str]) -> None:
    kept = [add(), add()]
    with database.transaction() as session:
        session.get_one(Node, "node-a").heartbeat_at = after(-25)  # as after a minute without the database
    assert reconcile(database) == []
    with database.transaction() as session:
        session.get_one(Node, "node-a").heartbeat_at = now()
        assert [session.get_one(Sandbox, warm).desired for warm in kept] == [Desired.RUNNING] * 2
    assert reconcile(database) == []


@pytest.mark.parametrize("columns", [{"spec_revision": 0}, {"status": Status.ERROR, "reason": Reason.NODE_LOST}])
def test_unusable_warm_sandbox_of_a_lost_node_is_removed(
    database: Database, add: Callable[..., str], columns: dict[str, Any]
) -> None:
    warm = add(node_id="node-b", **columns)
    change_node(database, status=NodeStatus.LOST)
    assert (warm, Desired.DELETED) in reconcile(database)

"""Gauges that are read from the store."""

from datetime import timedelta

from api.routes.ops import store_gauges
from shared.clock import now
from shared.db.database import Database
from shared.states import NodeStatus, Reason, Status
from tests.factories import NODE_ID, ApiUser, make_node, make_sandbox


def read(database: Database) -> dict[tuple[str, ...], float]:
    """Each sample's value, by its name without the prefix and its labels' values."""
    return {
        (sample.name.removeprefix("agent_workspace_"), *sample.labels.values()): sample.value
        for metric in store_gauges.read_gauges(database)
        for sample in metric.samples
    }


def test_sandboxes_are_counted_by_node_status_and_reason(database: Database, user: ApiUser) -> None:
    make_node(database)
    make_sandbox(database, user)
    make_sandbox(database, user, owner_id=None)
    make_sandbox(database, user, status=Status.ERROR, reason=Reason.OOM_KILLED, node_id=None)
    found = read(database)
    assert found["sandboxes", NODE_ID, "RUNNING", ""] == 2
    assert found["node_used", NODE_ID] == 1, "a warm sandbox takes no capacity from users"
    assert found["sandboxes", "", "ERROR", "oom_killed"] == 1
    assert found["node_status", NODE_ID, NodeStatus.READY] == 1
    assert found["node_status", NODE_ID, NodeStatus.LOST] == 0
    assert found["node_capacity", NODE_ID] > 0


def test_nodes_are_closed_or_impaired_until_they_are_given_up(database: Database) -> None:
    make_node(database, closed_reason="its disk is full")
    make_node(database, "node-b", impaired_reason="no egress proxy")
    make_node(database, "node-c", closed_reason="gone", status=NodeStatus.LOST, forgotten_at=now())
    found = read(database)
    assert {key[1]: value for key, value in found.items() if key[0] == "node_closed"} == {NODE_ID: 1, "node-b": 0}
    assert {key[1]: value for key, value in found.items() if key[0] == "node_impaired"} == {NODE_ID: 0, "node-b": 1}
    assert ("node_status", "node-c", NodeStatus.LOST) not in found


def test_silent_node_is_counted_before_it_is_marked_lost(database: Database) -> None:
    make_node(database, heartbeat_at=now() - timedelta(minutes=5))
    make_node(database, "node-b", heartbeat_at=now())
    found = read(database)
    assert 300 <= found["node_heartbeat_age_seconds", NODE_ID] < 400
    assert found["node_heartbeat_age_seconds", "node-b"] < 60
    assert found["node_status", NODE_ID, NodeStatus.READY] == 1


def test_costly_counts_are_kept_for_some_seconds(database: Database, user: ApiUser) -> None:
    make_sandbox(database, user)
    read(database)
    make_sandbox(database, user)
    assert read(database)["sandboxes", NODE_ID, "RUNNING", ""] == 1
    store_gauges._kept.clear()
    assert read(database)["sandboxes", NODE_ID, "RUNNING", ""] == 2


def test_unreconciled_sandbox_is_counted_though_nothing_is_due(database: Database, user: ApiUser) -> None:
    assert read(database)["oldest_unreconciled_seconds",] == 0
    old = now() - timedelta(seconds=60)
    make_sandbox(database, user, observed_generation=0, updated_at=old)
    found = read(database)
    assert (found["sandboxes_unreconciled",], found["sandboxes_waiting",]) == (1, 0)
    assert found["oldest_unreconciled_seconds",] >= 60
    assert {"start_tasks_waiting", "conversations_due"} <= {name for name, *_ in found}

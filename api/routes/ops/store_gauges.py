"""Gauges read from the database for Prometheus: pools, nodes, sandboxes, and the rows that wait for a worker."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from threading import Lock
from typing import Any

from cachetools import TTLCache, cached
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from shared.clock import now
from shared.db.database import Database, Session
from shared.leasing import leases
from shared.models import Conversation, Sandbox, StartTask
from shared.nodes import counts
from shared.nodes import registry as node_registry
from shared.nodes.counts import Counted
from shared.sandboxes import specs
from shared.states import NodeStatus
from shared.warm_pool import pool as warm_pool

POOL = "agent_workspace_warm_pool"


# Seconds for which a process keeps the counts whose cost grows with the number of sandboxes.
KEPT_SECONDS = 10.0
_kept: TTLCache[Any, list[Counted]] = TTLCache(8, KEPT_SECONDS)
_kept_used: TTLCache[Any, dict[str, int]] = TTLCache(8, KEPT_SECONDS)


def read_gauges(database: Database) -> list[Metric]:
    """Read all gauges. Indexes keep the cost of most of them independent of the number of sandboxes."""
    with database.reading() as session:
        return [*_pools(session), *_backlog(session), *_unreconciled(session), *_nodes(session), _sandboxes(session)]


def _pools(session: Session) -> Iterator[Metric]:
    sandboxes = GaugeMetricFamily(f"{POOL}_members", "Sandboxes of the warm pool", labels=("spec", "state"))
    target = GaugeMetricFamily(f"{POOL}_target", "Number of sandboxes that should be ready", labels=("spec",))
    maximum = GaugeMetricFamily(f"{POOL}_most", "Maximum number of sandboxes at a time", labels=("spec",))
    counted = warm_pool.count(session)
    for spec in specs.list_specs(session):
        if not spec.warm_most and spec.id not in counted:
            continue
        ready, booting = counted.get(spec.id, (0, 0))
        sandboxes.add_metric([spec.id, "ready"], ready)
        sandboxes.add_metric([spec.id, "booting"], booting)
        target.add_metric([spec.id], spec.warm_target)
        maximum.add_metric([spec.id], spec.warm_most)
    yield from (sandboxes, target, maximum)


def _backlog(session: Session) -> Iterator[Metric]:
    """The rows that wait for a worker. The gauges of sandboxes are older, so `oldest_due_seconds` names no kind."""
    for found, rows, oldest in (
        (leases.backlog(session, Sandbox), "sandboxes", "oldest_due_seconds"),
        (leases.backlog(session, StartTask), "start_tasks", "oldest_due_start_task_seconds"),
        (leases.backlog(session, Conversation), "conversations", "oldest_due_conversation_seconds"),
    ):
        yield _gauge(f"{rows}_waiting", f"{rows} that no worker has picked up yet", found.waiting)
        yield _gauge(f"{rows}_due", "Waiting rows whose job a worker should have enqueued by now", found.due)
        yield _gauge(oldest, "Seconds for which the oldest row has been due; 0: none", _age(found.oldest_due_at))


def _unreconciled(session: Session) -> Iterator[Metric]:
    found = counts.count_unreconciled(session)
    yield _gauge("sandboxes_unreconciled", "Sandboxes whose desired state is not reached yet", found.number)
    help_text = "Seconds since the oldest of these sandboxes changed; 0: none"
    yield _gauge("oldest_unreconciled_seconds", help_text, _age(found.oldest_at))


def _nodes(session: Session) -> Iterator[Metric]:
    nodes = counts.read_nodes(session)
    up = GaugeMetricFamily("agent_workspace_node_status", "1: the node has this status", labels=("node", "status"))
    for node in nodes:
        for status in NodeStatus:
            up.add_metric([node.node_id, status], node.status == status)
    yield up
    # Only the workers of other nodes mark a silent node LOST: in an installation with one node, nothing does.
    age = {node.node_id: _age(node.heartbeat_at) for node in nodes}
    yield _by_node("heartbeat_age_seconds", "Seconds since the node's last heartbeat", age)
    used = _count_used(session)
    yield _by_node("used", "Sandboxes, except warm ones", {node.node_id: used.get(node.node_id, 0) for node in nodes})
    yield _by_node("capacity", "Max sandboxes of the node", {node.node_id: node.capacity for node in nodes})
    yield _by_node("closed", "1: the node takes no new sandboxes", {node.node_id: node.is_closed for node in nodes})
    yield _by_node("impaired", "1: a part of the node fails", {node.node_id: node.is_impaired for node in nodes})


def _sandboxes(session: Session) -> Metric:
    labels = ("node", "status", "reason")
    family = GaugeMetricFamily("agent_workspace_sandboxes", "Sandboxes that exist", labels=labels)
    for counted in _count_by_status(session):
        family.add_metric([counted.node_id, counted.status, counted.reason], counted.number)
    return family


@cached(_kept, key=Session.get_bind, lock=Lock())
def _count_by_status(session: Session) -> list[Counted]:
    return counts.count_by_status(session)


@cached(_kept_used, key=Session.get_bind, lock=Lock())
def _count_used(session: Session) -> dict[str, int]:
    return node_registry.used_slots(session)


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"agent_workspace_{name}", help_text, value)


def _by_node(name: str, help_text: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"agent_workspace_node_{name}", help_text, labels=("node",))
    for node_id, value in values.items():
        family.add_metric([node_id], value)
    return family


def _age(since: datetime | None) -> float:
    return max(0.0, (now() - since).total_seconds()) if since else 0.0

"""Gauges read from the database for Prometheus: the warm pools, and the rows that wait for a worker."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from shared.clock import now
from shared.db.database import Database, Session
from shared.leasing import leases
from shared.models import Sandbox
from shared.sandboxes import specs
from shared.warm_pool import pool as warm_pool

POOL = "agent_workspace_warm_pool"


def read_gauges(database: Database) -> list[Metric]:
    """Read all gauges. Indexes keep the cost independent of the number of sandboxes."""
    with database.reading() as session:
        return [*_pools(session), *_backlog(session)]


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
    found = leases.backlog(session, Sandbox)
    oldest = (now() - found.oldest_due_at).total_seconds() if found.oldest_due_at else 0.0
    for name, help_text, value in (
        ("sandboxes_waiting", "Sandboxes that no worker has picked up yet", found.waiting),
        ("sandboxes_due", "Those among them whose job a worker should have enqueued by now", found.due),
        ("oldest_due_seconds", "Seconds for which the first of these has been due; 0: none is due", max(0.0, oldest)),
    ):
        yield GaugeMetricFamily(f"agent_workspace_{name}", help_text, value)

"""What the store says, for Prometheus: warm pools as they are now, and what waits for a worker."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from sqlmodel import Session

from shared.clock import now
from shared.db.database import Database
from shared.leasing import leases
from shared.models import Sandbox
from shared.sandboxes import specs
from shared.warm_pool import pool as warm_pool

POOL = "agent_workspace_warm_pool"


def read_gauges(database: Database) -> list[Metric]:
    """All of them, as of now; the same however many sandboxes there are, thanks to their indexes."""
    with database.reading() as session:
        return [*_pools(session), *_backlog(session)]


def _pools(session: Session) -> Iterator[Metric]:
    members = GaugeMetricFamily(f"{POOL}_members", "Members of the warm pool", labels=("spec", "state"))
    target = GaugeMetricFamily(f"{POOL}_target", "So many should be ready", labels=("spec",))
    most = GaugeMetricFamily(f"{POOL}_most", "So many may there be at a time", labels=("spec",))
    counted = warm_pool.count(session)
    for spec in specs.list_specs(session):
        if not spec.warm_most and spec.id not in counted:
            continue
        ready, booting = counted.get(spec.id, (0, 0))
        members.add_metric([spec.id, "ready"], ready)
        members.add_metric([spec.id, "booting"], booting)
        target.add_metric([spec.id], spec.warm_target)
        most.add_metric([spec.id], spec.warm_most)
    yield from (members, target, most)


def _backlog(session: Session) -> Iterator[Metric]:
    found = leases.backlog(session, Sandbox)
    oldest = (now() - found.oldest_due_at).total_seconds() if found.oldest_due_at else 0.0
    for name, words, value in (
        ("sandboxes_waiting", "Sandboxes that no worker has picked up yet", found.waiting),
        ("sandboxes_due", "Those among them that a worker should have handed out by now", found.due),
        ("oldest_due_seconds", "For how long the first of these has been due; 0: none is", max(0.0, oldest)),
    ):
        yield GaugeMetricFamily(f"agent_workspace_{name}", words, value)

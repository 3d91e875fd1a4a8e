"""Polls for what must never exist: two running containers of one sandbox on two READY nodes.

These overlaps are permitted:

- A container on a node that is not READY. The node's engine or worker does not respond, so the service recreated the
  sandbox elsewhere and could not stop the first container. The node removes it before it is READY again.
- A container that does not run. A worker that was frozen before `docker create` sends the request once it continues,
  because an engine checks no fencing token. The worker checks its token before the next action and does not start the
  container.
- A container that the nemesis started from outside, until the parts agree again.

Two containers that run on READY nodes are a violation, even if only one check sees them.
"""

import time
from collections.abc import Callable, Collection, Mapping

from sqlalchemy.exc import SQLAlchemyError

from shared.nodes import registry as node_registry
from shared.states import NodeStatus
from tests.drills.chaos.nemesis import Nemesis
from tests.drills.chaos.site import Site
from tests.drills.engine_listing import SANDBOX_LABEL, list_containers
from worker.loops.periodic import PeriodicTask

POLL_SECONDS = 0.5
STARTED_OUTSIDE = "container started"
# The time from a fault to the end of its round's agreement.
ROUND_SECONDS = 60.0
# Lists the sandboxes whose containers run on a node.
ListRunning = Callable[[str], Collection[str]]


class Watch:
    """Records the sandboxes that ran twice, and counts the checks that succeeded."""

    def __init__(self, site: Site, nemesis: Nemesis) -> None:
        self.doubles: dict[str, str] = {}
        self.checks = 0
        self._site = site
        self._nemesis = nemesis
        routine = PeriodicTask("watch", POLL_SECONDS, self._poll)
        self.start, self.stop = routine.start, routine.stop

    def _poll(self) -> None:
        try:
            found = find_doubles(self._ready, self._running)
        except (AssertionError, SQLAlchemyError):
            return  # the containers or the status of a node cannot be read
        if found is None:
            return
        self.checks += 1
        since = time.monotonic() - ROUND_SECONDS
        outside = [fault for fault in self._nemesis.log if fault.kind == STARTED_OUTSIDE]
        started = {fault.subject for fault in outside if fault.ended > since}
        self.doubles |= {sandbox_id: where for sandbox_id, where in found.items() if sandbox_id not in started}

    def _ready(self) -> set[str]:
        with self._site.service.database.reading() as session:
            ready = {node.id for node in node_registry.list_nodes(session) if node.status == NodeStatus.READY}
        return ready & set(self._site.engines)

    def _running(self, node: str) -> set[str]:
        found = list_containers(self._site.engines[node], "--filter", "status=running")
        return {item.labels.get(SANDBOX_LABEL, item.name) for item in found}


def find_doubles(ready: Callable[[], Collection[str]], running: ListRunning) -> Mapping[str, str] | None:
    """Find the sandboxes that run on two READY nodes at once, and where; None: fewer than two nodes are READY.

    Two engines cannot be listed at the same moment, so each is listed twice, one after the other. A container that ran
    on the first node before and after it ran on the second ran on both at once. Both nodes must be READY before the
    first listing and after the last.
    """
    before = sorted(ready())
    first = {node: set(running(node)) for node in before}
    again = {node: first[node] & set(running(node)) for node in before if _may_double(node, first)}
    after = set(ready())
    if len(after.intersection(before)) < 2:
        return None
    found: dict[str, str] = {}
    for sandbox_id in {sandbox_id for found in again.values() for sandbox_id in found}:
        where = [node for node in sorted(again) if sandbox_id in again[node] and node in after]
        if len(where) > 1:
            found[sandbox_id] = " and ".join(where)
    return found


def _may_double(node: str, running: Mapping[str, Collection[str]]) -> bool:
    return any(set(running[node]) & set(others) for other, others in running.items() if other != node)

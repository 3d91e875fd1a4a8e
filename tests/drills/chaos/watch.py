"""Looks all the time for what must never be: two running containers of one sandbox, on nodes that are both in order.

What may overlap, and is no violation:

- A container on a node that is not READY. Its engine or its worker does not answer, so the sandbox was made elsewhere;
  the service could not stop the first one. The node removes it before it says that it is READY again.
- A container that does not run. A worker that stood still before `docker create` creates it once it wakes, because no
  fence keeps an engine from what it is asked. The worker looks at its fence before the next step and does not start it.
- A container that an outside change has started: the nemesis does so.

Two that run on READY nodes have no such excuse, so one look that sees them is enough.
"""

from collections.abc import Callable, Collection, Mapping

from sqlalchemy.exc import SQLAlchemyError

from shared.nodes import registry as node_registry
from shared.states import NodeStatus
from tests.drills.chaos.nemesis import Nemesis
from tests.drills.chaos.site import Site
from tests.drills.engine_listing import SANDBOX_LABEL, list_containers
from worker.loops.periodic import PeriodicTask

LOOK_SECONDS = 0.5
BY_HAND = "container started"
# The sandboxes whose containers run on a node.
List = Callable[[str], Collection[str]]


class Watch:
    """Keeps what it has seen double, and how often it could look at both engines."""

    def __init__(self, site: Site, nemesis: Nemesis) -> None:
        self.doubles: dict[str, str] = {}
        self.looks = 0
        self._site = site
        self._nemesis = nemesis
        routine = PeriodicTask("watch", LOOK_SECONDS, self._look)
        self.start, self.stop = routine.start, routine.stop

    def _look(self) -> None:
        try:
            found = find_doubles(self._ready, self._running)
        except (AssertionError, SQLAlchemyError):
            return  # a node's containers or status cannot be read
        self.looks += 1
        started = {fault.subject for fault in self._nemesis.log if fault.kind == BY_HAND}
        self.doubles |= {sandbox_id: where for sandbox_id, where in found.items() if sandbox_id not in started}

    def _ready(self) -> set[str]:
        with self._site.service.database.reading() as session:
            ready = {node.id for node in node_registry.list_nodes(session) if node.status == NodeStatus.READY}
        return ready & set(self._site.engines)

    def _running(self, node: str) -> set[str]:
        found = list_containers(self._site.engines[node], "--filter", "status=running")
        return {item.labels.get(SANDBOX_LABEL, item.name) for item in found}


def find_doubles(ready: Callable[[], Collection[str]], running: List) -> Mapping[str, str]:
    """The sandboxes that run on two READY nodes at once, and where.

    No two engines can be asked at the same moment. So all are asked twice, one after the other: what ran on the first
    before and after it ran on the second ran on both at once, on nodes that were READY before and after.
    """
    before = sorted(ready())
    first = {node: set(running(node)) for node in before}
    again = {node: first[node] & set(running(node)) for node in before if _may_double(node, first)}
    after = set(ready())
    found: dict[str, str] = {}
    for sandbox_id in {sandbox_id for found in again.values() for sandbox_id in found}:
        where = [node for node in sorted(again) if sandbox_id in again[node] and node in after]
        if len(where) > 1:
            found[sandbox_id] = " and ".join(where)
    return found


def _may_double(node: str, running: Mapping[str, Collection[str]]) -> bool:
    return any(set(running[node]) & set(others) for other, others in running.items() if other != node)

"""Looks all the time for what must never be: a sandbox with containers on two engines that are both in order."""

from collections import Counter

from sqlalchemy.exc import SQLAlchemyError

from shared.states import NodeStatus
from shared.store import nodes
from tests.drills.chaos.site import INSTALLATION, Site
from worker.containers import EngineError
from worker.engine import SANDBOX_LABEL
from worker.routines import Routine

LOOK_SECONDS = 0.5
# A node is rid of what lives elsewhere before it says that it is back; what a worker that stood still makes after
# that goes with one of its next heartbeats.
LOOKS = 5


class Watch:
    """Counts, look by look, for how long a sandbox has been double."""

    def __init__(self, site: Site) -> None:
        self.doubles: list[str] = []
        self.looks = 0
        self._site = site
        self._seen: Counter[str] = Counter()
        routine = Routine("watch", LOOK_SECONDS, self._look)
        self.start, self.stop = routine.start, routine.stop

    def _look(self) -> None:
        try:
            self._count()
        except (EngineError, SQLAlchemyError):
            self._seen.clear()  # nobody can say what is there

    def _count(self) -> None:
        with self._site.service.database.reading() as session:
            ready = {node.id for node in nodes.list_nodes(session) if node.status == NodeStatus.READY}
        found = Counter(
            item.labels.get(SANDBOX_LABEL, item.name)
            for name in ready & set(self._site.views)
            for item in self._site.views[name].list_containers(INSTALLATION)
        )
        double = {sandbox_id for sandbox_id, count in found.items() if count > 1}
        self._seen = Counter({sandbox_id: self._seen[sandbox_id] + 1 for sandbox_id in double})
        self.doubles += [sandbox_id for sandbox_id, looks in self._seen.items() if looks == LOOKS]
        self.looks += 1

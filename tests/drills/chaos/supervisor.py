"""What supervisord does for `make run`: a process that has ended by itself is started again."""

from collections import Counter

from tests.drills.chaos.site import APIS, NODES, WORKERS, Site, door_of
from worker.loops.periodic import PeriodicTask

LOOK_SECONDS = 0.5


class Supervisor:
    """Looks after the processes that no fault has in its hands."""

    def __init__(self, site: Site) -> None:
        # How often each process has ended by itself.
        self.ends: Counter[str] = Counter()
        self._site = site
        routine = PeriodicTask("supervisor", LOOK_SECONDS, self._look)
        self.start, self.stop = routine.start, routine.stop

    def _look(self) -> None:
        for name in (*APIS, *WORKERS):
            if self._site.service.has_ended(name):
                self.ends[name] += 1
                self._site.start_process(name)
        for node in NODES:
            if self._site.service.has_ended(door := door_of(node)):
                self.ends[door] += 1
                self._site.service.kill(door)
                self._site.start_door(node)

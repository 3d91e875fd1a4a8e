"""Restarts processes that ended by themselves, as supervisord does for `make run`."""

from collections import Counter

from tests.drills.chaos.site import APIS, NODES, WORKERS, Site, door_of
from worker.loops.periodic import PeriodicTask

POLL_SECONDS = 0.5


class Supervisor:
    """Restarts each process that ended without a fault."""

    def __init__(self, site: Site) -> None:
        # The number of times that each process ended by itself.
        self.ends: Counter[str] = Counter()
        self._site = site
        routine = PeriodicTask("supervisor", POLL_SECONDS, self._poll)
        self.start, self.stop = routine.start, routine.stop

    def _poll(self) -> None:
        for name in (*APIS, *WORKERS):
            if self._site.service.has_ended(name):
                self.ends[name] += 1
                self._site.start_process(name)
        for node in NODES:
            if self._site.service.has_ended(door := door_of(node)):
                self.ends[door] += 1
                self._site.service.kill(door)
                self._site.start_door(node)

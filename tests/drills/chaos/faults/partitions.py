"""Partitions: one process loses its route to the database or the broker, and neither side is notified."""

import random

from tests.drills.chaos.faults.processes import ProcessFault
from tests.drills.chaos.site import Site
from tests.services.link import Link


class DatabasePartitioned(ProcessFault):
    """No byte passes between a process and PostgreSQL, while the connections stay open."""

    seconds = (1.0, 9.0)
    needs_postgres = True

    def __init__(self, site: Site, rng: random.Random) -> None:
        super().__init__(site, rng)
        self._resets = rng.random() < 0.5

    def inject(self) -> None:
        self._link().partition()

    def heal(self) -> None:
        self._link().heal(reset=self._resets)

    def _link(self) -> Link:
        return self.site.database_links[self.subject]


class BrokerPartitioned(DatabasePartitioned):
    """No byte passes between a process and the broker, while the connections stay open."""

    needs_postgres = False

    def _link(self) -> Link:
        return self.site.broker_links[self.subject]

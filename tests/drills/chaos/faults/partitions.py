"""Partitions: one process is cut off from the database or from the broker, and neither side is told."""

import random

from tests.drills.chaos.faults.processes import OfProcess
from tests.drills.chaos.site import Site
from tests.services.link import Link


class DatabasePartitioned(OfProcess):
    """No byte passes between a process and PostgreSQL, on open connections."""

    seconds = (1.0, 9.0)
    needs_postgres = True

    def __init__(self, site: Site, rng: random.Random) -> None:
        super().__init__(site, rng)
        self._resets = rng.random() < 0.5

    def inflict(self) -> None:
        self._link().partition()

    def heal(self) -> None:
        self._link().heal(reset=self._resets)

    def _link(self) -> Link:
        return self.site.database_links[self.subject]


class BrokerPartitioned(DatabasePartitioned):
    """The same, between a process and the broker."""

    needs_postgres = False

    def _link(self) -> Link:
        return self.site.broker_links[self.subject]

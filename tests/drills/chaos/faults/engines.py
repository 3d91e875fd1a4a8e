"""Faults of the engines, and of the registry that they pull from."""

import random
from contextlib import suppress

from tests.drills.chaos.faults.fault import Fault, Missed
from tests.drills.chaos.site import NODES

PULL_DELAY_SECONDS = 1.5


class OfEngine(Fault):
    """A fault of one node's engine."""

    @property
    def node(self) -> str | None:
        return self.subject

    def choose(self, rng: random.Random) -> str:
        return rng.choice(NODES)


class EngineRestarted(OfEngine):
    """Its containers end with it."""

    seconds = (0.0, 4.0)

    def inflict(self) -> None:
        self.site.engines[self.subject].stop()

    def heal(self) -> None:
        self.site.engines[self.subject].start()


class EngineKilled(EngineRestarted):
    """`kill -9` of the daemon."""

    def inflict(self) -> None:
        self.site.engines[self.subject].kill()


class EngineStalled(OfEngine):
    """It holds its connections and says nothing."""

    seconds = (1.0, 9.0)

    def inflict(self) -> None:
        self.site.engines[self.subject].stall()

    def heal(self) -> None:
        self.site.engines[self.subject].wake()


class DiskFull(OfEngine):
    """No room for another layer."""

    def inflict(self) -> None:
        self.site.engines[self.subject].fill_disk()

    def heal(self) -> None:
        self.site.engines[self.subject].free_disk()


class OfRegistry(OfEngine):
    """An engine must pull, and the registry does not do it well: neither for it nor for any other."""

    @property
    def node(self) -> str | None:
        return None

    def inflict(self) -> None:
        engine, image = self.site.engines[self.subject], self.site.registry.image
        with suppress(AssertionError):  # a container may be using it, or it is not there
            engine.docker("rmi", "--force", image)
        try:
            is_there = engine.docker("images", "--quiet", image)
        except AssertionError as error:
            raise Missed(str(error)) from error
        if is_there:
            raise Missed(f"{self.subject} keeps {image}: it need not pull")


class PullSlow(OfRegistry):
    """Each answer takes its time."""

    def inflict(self) -> None:
        self.site.registry.delay_seconds = PULL_DELAY_SECONDS
        super().inflict()

    def heal(self) -> None:
        self.site.registry.delay_seconds = 0.0


class PullFails(OfRegistry):
    """Each answer is a failure."""

    def inflict(self) -> None:
        self.site.registry.is_failing = True
        super().inflict()

    def heal(self) -> None:
        self.site.registry.is_failing = False

"""Faults of the engines, and of the registry that they pull from."""

import random
from contextlib import suppress

from tests.drills.chaos.faults.fault import Fault, Missed
from tests.drills.chaos.site import NODES

PULL_DELAY_SECONDS = 1.5


class EngineFault(Fault):
    """A fault of one node's engine."""

    @property
    def node(self) -> str | None:
        return self.subject

    def choose(self, rng: random.Random) -> str:
        return rng.choice(NODES)


class EngineRestarted(EngineFault):
    """A restart of the daemon, which also ends its containers."""

    seconds = (0.0, 4.0)

    def inject(self) -> None:
        self.site.engines[self.subject].stop()

    def heal(self) -> None:
        self.site.engines[self.subject].start()


class EngineKilled(EngineRestarted):
    """`kill -9` of the daemon."""

    def inject(self) -> None:
        self.site.engines[self.subject].kill()


class EngineStalled(EngineFault):
    """The daemon keeps its connections open and does not respond."""

    seconds = (1.0, 9.0)

    def inject(self) -> None:
        self.site.engines[self.subject].stall()

    def heal(self) -> None:
        self.site.engines[self.subject].wake()


class DiskFull(EngineFault):
    """The engine's disk has no room for another layer."""

    def inject(self) -> None:
        self.site.engines[self.subject].fill_disk()

    def heal(self) -> None:
        self.site.engines[self.subject].free_disk()


class RegistryFault(EngineFault):
    """A fault of the registry, which all engines share; one engine loses its image and must pull it."""

    @property
    def node(self) -> str | None:
        return None

    def inject(self) -> None:
        engine, image = self.site.engines[self.subject], self.site.registry.image
        with suppress(AssertionError):  # a container may use the image, or the image is absent
            engine.docker("rmi", "--force", image)
        try:
            may_have_container = engine.docker("images", "--quiet", image)
        except AssertionError as error:
            raise Missed(str(error)) from error
        if may_have_container:
            raise Missed(f"{self.subject} still has {image}, so it does not pull")


class PullSlow(RegistryFault):
    """Each of the registry's responses is delayed."""

    def inject(self) -> None:
        self.site.registry.delay_seconds = PULL_DELAY_SECONDS
        super().inject()

    def heal(self) -> None:
        self.site.registry.delay_seconds = 0.0


class PullFails(RegistryFault):
    """Each of the registry's responses is an error."""

    def inject(self) -> None:
        self.site.registry.is_failing = True
        super().inject()

    def heal(self) -> None:
        self.site.registry.is_failing = False

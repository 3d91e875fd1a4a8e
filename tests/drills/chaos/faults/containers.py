"""Faults of containers, behind the service's back."""

import random
from contextlib import suppress
from typing import ClassVar

from tests.drills.chaos.faults.engines import OfEngine
from tests.drills.chaos.faults.fault import Fault
from tests.drills.chaos.site import INSTALLATION, NODES
from tests.services.engine import TINY_IMAGE
from worker.containers import EngineError, Listed


class OfContainer(Fault):
    """Somebody else's hand on one sandbox's container; nobody mends it but the service, when it is asked to."""

    seconds = (0.0, 0.0)
    arguments: ClassVar[tuple[str, ...]] = ()

    def choose(self, rng: random.Random) -> str:
        """A container that is there now."""
        self._node = rng.choice(NODES)
        found = sorted(self._containers(), key=lambda item: item.name)
        return rng.choice(found).name.removeprefix("aw-") if found else ""

    def inflict(self) -> None:
        if self.subject:
            with suppress(AssertionError):  # it has gone meanwhile, or can't be treated like that
                self.site.engines[self._node].docker(*self.arguments, f"aw-{self.subject}")

    def _containers(self) -> list[Listed]:
        try:
            return self.site.views[self._node].list_containers(INSTALLATION)
        except EngineError:
            return []


class ContainerKilled(OfContainer):
    """`docker kill`."""

    arguments = ("kill",)


class ContainerStopped(OfContainer):
    """`docker stop`."""

    arguments = ("stop", "--time", "1")


class ContainerStarted(OfContainer):
    """`docker start`, of one that is to stand still perhaps."""

    arguments = ("start",)


class ContainerPaused(OfContainer):
    """`docker pause`."""

    arguments = ("pause",)


class ContainerUnpaused(OfContainer):
    """`docker unpause`."""

    arguments = ("unpause",)


class ContainerRemoved(OfContainer):
    """`docker rm --force`."""

    arguments = ("rm", "--force")


class StrangerCreated(OfEngine):
    """A container under our label that no row owns."""

    seconds = (0.0, 0.0)

    def inflict(self) -> None:
        label = f"agent-workspace.installation={INSTALLATION}"
        with suppress(AssertionError):
            self.site.engines[self.subject].docker(
                "create", "--name", f"aw-stranger{id(self)}", "--label", label, TINY_IMAGE
            )

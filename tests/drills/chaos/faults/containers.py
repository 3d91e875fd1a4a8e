"""Outside changes to containers."""

import random
from typing import ClassVar

from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import select

from shared.models import Sandbox
from shared.states import Status
from tests.drills.chaos.faults.engines import OfEngine
from tests.drills.chaos.faults.fault import Fault, Missed
from tests.drills.chaos.site import INSTALLATION, NODES
from tests.drills.engine_listing import INSTALLATION_LABEL, NAME_PREFIX, SANDBOX_LABEL, list_containers, sandbox_name
from tests.services.engine import TINY_IMAGE


class OfContainer(Fault):
    """An outside change to one sandbox's container; only the service repairs it, on a request."""

    seconds = (0.0, 0.0)
    arguments: ClassVar[tuple[str, ...]] = ()
    # Docker's words for the containers to which this makes a difference.
    states: ClassVar[tuple[str, ...]] = ("running",)

    @property
    def node(self) -> str | None:
        return self._node

    def choose(self, rng: random.Random) -> str:
        """A container that is there now, and that this would change; the other engine's if one has none."""
        for self._node in rng.sample(NODES, len(NODES)):
            if names := sorted(self._names()):
                return rng.choice(names).removeprefix(NAME_PREFIX)
        return ""

    def inflict(self) -> None:
        if not self.subject:
            raise Missed("no engine has such a container")
        try:
            self.site.engines[self._node].docker(*self.arguments, f"{NAME_PREFIX}{self.subject}")
        except AssertionError as error:
            raise Missed(str(error)) from error

    def _names(self) -> list[str]:
        filters = [word for state in self.states for word in ("--filter", f"status={state}")]
        try:
            return [item.name for item in list_containers(self.site.engines[self._node], "--all", *filters)]
        except AssertionError:
            return []  # it does not answer now


class ContainerKilled(OfContainer):
    """`docker kill`."""

    arguments = ("kill",)


class ContainerStopped(OfContainer):
    """`docker stop`."""

    arguments = ("stop", "--time", "1")


class ContainerStarted(OfContainer):
    """`docker start`, of one that is to stand still perhaps."""

    arguments = ("start",)
    states = ("created", "exited")


class ContainerPaused(OfContainer):
    """`docker pause`."""

    arguments = ("pause",)


class ContainerUnpaused(OfContainer):
    """`docker unpause`."""

    arguments = ("unpause",)
    states = ("paused",)


class ContainerRemoved(OfContainer):
    """`docker rm --force`."""

    arguments = ("rm", "--force")
    states = ("created", "running", "paused", "exited")


class StaleContainerCreated(OfEngine):
    """A container of a sandbox that is deleted, as an engine makes one late that a dead worker has asked for."""

    seconds = (0.0, 0.0)

    def inflict(self) -> None:
        name = sandbox_name(self._find_deleted())
        labels = {INSTALLATION_LABEL: INSTALLATION, SANDBOX_LABEL: name.removeprefix(NAME_PREFIX)}
        flags = [word for key, value in labels.items() for word in ("--label", f"{key}={value}")]
        try:
            self.site.engines[self.subject].docker("create", "--name", name, *flags, TINY_IMAGE)
        except AssertionError as error:
            raise Missed(str(error)) from error

    def _find_deleted(self) -> str:
        try:
            with self.site.service.database.reading() as session:
                found = session.exec(select(Sandbox.id).where(Sandbox.status == Status.DELETED).limit(1)).first()
        except SQLAlchemyError as error:
            raise Missed(type(error).__name__) from error
        if found is None:
            raise Missed("no sandbox is deleted yet")
        return found

"""Outside changes to containers."""

import random
from typing import ClassVar

from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import select

from shared.models import Sandbox
from shared.states import Status
from tests.drills.chaos.faults.engines import EngineFault
from tests.drills.chaos.faults.fault import Fault, Missed
from tests.drills.chaos.site import INSTALLATION, NODES
from tests.drills.engine_listing import INSTALLATION_LABEL, NAME_PREFIX, SANDBOX_LABEL, list_containers, sandbox_name
from tests.services.engine import TINY_IMAGE


class ContainerFault(Fault):
    """An outside change to one sandbox's container; only the service reverts it, when a client requests it."""

    seconds = (0.0, 0.0)
    arguments: ClassVar[tuple[str, ...]] = ()
    # The states, as Docker names them, of the containers that the command changes.
    states: ClassVar[tuple[str, ...]] = ("running",)

    @property
    def node(self) -> str | None:
        return self._node

    def choose(self, rng: random.Random) -> str:
        """Choose a container in one of the states, on a random node or else on the other; empty if neither has one."""
        for self._node in rng.sample(NODES, len(NODES)):
            if names := sorted(self._names()):
                return rng.choice(names).removeprefix(NAME_PREFIX)
        return ""

    def inject(self) -> None:
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
            return []  # the engine does not respond now


class ContainerKilled(ContainerFault):
    """`docker kill`."""

    arguments = ("kill",)


class ContainerStopped(ContainerFault):
    """`docker stop`."""

    arguments = ("stop", "--time", "1")


class ContainerStarted(ContainerFault):
    """`docker start`, possibly of a container that the service keeps stopped."""

    arguments = ("start",)
    states = ("created", "exited")

    def inject(self) -> None:
        try:
            super().inject()
        except Missed as error:
            if "error while mounting volume" in str(error):
                self.site.miscounted.add(sandbox_name(self.subject))
            raise


class ContainerPaused(ContainerFault):
    """`docker pause`."""

    arguments = ("pause",)


class ContainerUnpaused(ContainerFault):
    """`docker unpause`."""

    arguments = ("unpause",)
    states = ("paused",)


class ContainerRemoved(ContainerFault):
    """`docker rm --force`."""

    arguments = ("rm", "--force")
    states = ("created", "running", "paused", "exited")


class StaleContainerCreated(EngineFault):
    """A container of a deleted sandbox, as if an engine executed a dead worker's create request late."""

    seconds = (0.0, 0.0)

    def inject(self) -> None:
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

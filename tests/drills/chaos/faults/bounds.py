"""Faults of the isolation between sandboxes: a node's door, its firewall rules, and the sandboxes' disks."""

import subprocess

from tests.drills.chaos.bounds import bounds_of
from tests.drills.chaos.faults.containers import ContainerFault
from tests.drills.chaos.faults.engines import EngineFault
from tests.drills.chaos.faults.fault import Missed
from tests.drills.chaos.site import door_of
from tests.services.private_engine import detach_disk


class DoorKilled(EngineFault):
    """`kill -9` of a node's door, which a supervisor then restarts."""

    seconds = (0.0, 4.0)

    def inject(self) -> None:
        self.site.service.kill(door_of(self.subject))

    def heal(self) -> None:
        self.site.start_door(self.subject)


class DoorFrozen(EngineFault):
    """`kill -STOP` of a node's door: it keeps its connections open, accepts new ones, and forwards nothing."""

    seconds = (1.0, 9.0)

    def inject(self) -> None:
        self.site.service.freeze(door_of(self.subject))

    def heal(self) -> None:
        self.site.service.wake(door_of(self.subject))


class RulesFlushed(EngineFault):
    """Removal of the firewall tables of a node's sandboxes; only the service restores them."""

    seconds = (0.0, 0.0)

    def inject(self) -> None:
        try:
            bounds_of(self.site, self.subject).flush_rules()
        except AssertionError as error:
            raise Missed(str(error)) from error


class DiskDetached(ContainerFault):
    """The loop device of a stopped sandbox's disk is detached, as after a reboot; only the service reattaches it."""

    states = ("created", "exited")

    def inject(self) -> None:
        if not self.subject:
            raise Missed("no engine has such a container")
        try:
            was_attached = detach_disk(bounds_of(self.site, self._node).disk_image(self.subject))
        except subprocess.CalledProcessError as error:
            raise Missed(str(error.stderr)) from error
        if not was_attached:
            raise Missed("the sandbox has no attached disk")

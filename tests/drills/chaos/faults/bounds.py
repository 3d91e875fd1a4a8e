"""Faults of what keeps sandboxes apart: a node's door, its firewall rules, and the sandboxes' disks."""

import subprocess

from tests.drills.chaos.bounds import bounds_of
from tests.drills.chaos.faults.containers import OfContainer
from tests.drills.chaos.faults.engines import OfEngine
from tests.drills.chaos.faults.fault import Missed
from tests.drills.chaos.site import door_of
from tests.services.private_engine import detach_disk


class DoorKilled(OfEngine):
    """`kill -9` of a node's door, and a supervisor that starts it again."""

    seconds = (0.0, 4.0)

    def inflict(self) -> None:
        self.site.service.kill(door_of(self.subject))

    def heal(self) -> None:
        self.site.start_door(self.subject)


class DoorFrozen(OfEngine):
    """`kill -STOP` of a node's door: it holds its connections, accepts others, and passes nothing on."""

    seconds = (1.0, 9.0)

    def inflict(self) -> None:
        self.site.service.freeze(door_of(self.subject))

    def heal(self) -> None:
        self.site.service.wake(door_of(self.subject))


class RulesFlushed(OfEngine):
    """The firewall tables of a node's sandboxes are removed; only the service writes them again."""

    seconds = (0.0, 0.0)

    def inflict(self) -> None:
        try:
            bounds_of(self.site, self.subject).flush_rules()
        except AssertionError as error:
            raise Missed(str(error)) from error


class DiskDetached(OfContainer):
    """The loop device of a stopped sandbox's disk is gone, as after a reboot; only the service attaches it again."""

    states = ("created", "exited")

    def inflict(self) -> None:
        if not self.subject:
            raise Missed("no engine has such a container")
        try:
            was_attached = detach_disk(bounds_of(self.site, self._node).disk_image(self.subject))
        except subprocess.CalledProcessError as error:
            raise Missed(str(error.stderr)) from error
        if not was_attached:
            raise Missed("it has no disk, or none that is attached")

"""The networks around the sandboxes are removed, also those of a run that was killed."""

import re
import subprocess

from shared.ids import new_id
from tests.isolation.surroundings import remove_abandoned
from tests.services import programs
from tests.services.slots import Slot, is_unused
from tests.waiting import eventually

RUN = """
import sys
from tests.isolation.surroundings import other_machine
with other_machine(sys.argv[1:]) as lan:
    print(lan.namespace, flush=True)
    input()
"""
LISTS = (
    *(["ip", "netns"], ["ip", "-o", "link"], ["ip", "rule"], ["iptables", "--wait", "-S", "DOCKER-USER"]),
    ["ps", "-eo", "args"],
)


def test_networks_of_a_killed_run_are_removed_and_its_slot_is_usable_again() -> None:
    bridge = f"br-awt{new_id()[:8]}"
    with programs.running(RUN, bridge) as run:
        number = int(run.read().rpartition("-")[2])
        built = list_traces(number, bridge)
        assert len(built) >= 3
        remove_abandoned()
        assert list_traces(number, bridge) == built
        run.kill()

    def is_removed() -> bool:
        remove_abandoned()
        return list_traces(number, bridge) == []

    eventually(is_removed)
    assert is_unused(Slot(number, -1).network)


def list_traces(number: int, bridge: str) -> list[str]:
    """The names of the run's namespace, devices, listeners and bridge, wherever this machine lists them."""
    listed = [subprocess.run(command, capture_output=True, text=True, check=False).stdout for command in LISTS]
    return re.findall(rf"\b(?:aw-?lan-?{number}|aw-heard-{number}|{bridge})\b", "\n".join(listed))

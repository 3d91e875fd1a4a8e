"""A slot has one holder at a time, and a killed process holds none."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from tests.services import programs, slots
from tests.services.slots import Slot, is_unused, take_slot, taken_slot

TAKERS, TAKEN = 4, 8
TAKER = f"""
import sys
from pathlib import Path
from tests.services import slots
slots.SLOTS, slots.COUNT = Path(sys.argv[1]), {TAKERS * TAKEN}
sys.stdin.readline()
held = [slots.taken_slot() for _ in range({TAKEN})]
print(*(slot.__enter__().number for slot in held), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def own_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate directory of slots for this test."""
    monkeypatch.setattr(slots, "SLOTS", tmp_path / "slots")
    return tmp_path / "slots"


@pytest.fixture
def only_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "COUNT", 2)


@pytest.fixture
def bridged() -> Iterator[Slot]:
    """A held slot of this machine whose network is in use."""
    with taken_slot(lambda slot: is_unused(slot.network)) as slot, ExitStack() as stack:
        name = slot.bridge  # the next engine removes it if this process is killed
        subprocess.run(["ip", "link", "add", name, "type", "bridge"], check=True)
        stack.callback(subprocess.run, ["ip", "link", "delete", name], check=True)
        subprocess.run(["ip", "address", "add", f"{slot.network[9]}/28", "dev", name], check=True)
        yield slot


def test_concurrent_processes_never_hold_the_same_slot(own_slots: Path) -> None:
    with programs.running_together(TAKERS, TAKER, str(own_slots)) as takers:
        for taker in takers:
            taker.write()
        held = [int(number) for taker in takers for number in taker.read().split()]
    assert sorted(held) == list(range(TAKERS * TAKEN))


@pytest.mark.usefixtures("own_slots", "only_two")
def test_slot_that_is_held_is_not_taken_again() -> None:
    with taken_slot() as first, taken_slot() as second:
        assert {first.number, second.number} == {0, 1}
        with pytest.raises(RuntimeError, match="none of the 2 slots"), taken_slot():
            pass
    assert_free(0)


def test_slot_of_a_killed_process_is_free_again(own_slots: Path) -> None:
    with programs.running(TAKER, str(own_slots)) as taker:
        taker.write()
        number = int(taker.read().split()[0])
        assert take_slot(number) is None
        taker.kill()
        assert_free(number)


@pytest.mark.usefixtures("own_slots", "only_two")
def test_slot_that_is_not_usable_is_skipped_and_stays_free() -> None:
    with taken_slot(lambda slot: slot.number == 1) as slot:
        assert slot.number == 1
        assert_free(0)


# The bridge's slot is one of the machine's, because it was taken before `own_slots`.
@pytest.mark.usefixtures("bridged", "own_slots")
def test_slot_whose_network_is_occupied_is_skipped(bridged: Slot) -> None:
    assert not is_unused(bridged.network)
    with pytest.raises(RuntimeError, match="free and usable"):
        taken_slot(lambda slot: slot.number == bridged.number and is_unused(slot.network)).__enter__()
    with taken_slot(lambda slot: is_unused(slot.network)) as slot:
        assert slot.number != bridged.number


def test_network_that_the_engine_keeps_is_occupied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker = tmp_path / "docker"
    kept = [{"IPAM": {"Config": None}}, {"IPAM": {"Config": [{"Subnet": "fd00::/64"}, {"Subnet": "198.18.9.0/24"}]}}]
    docker.write_text(f"#!/bin/sh\n[ $2 = ls ] && echo 1 || echo '{json.dumps(kept)}'\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert not is_unused(IPv4Network("198.18.9.0/24"))


def test_slots_have_networks_and_addresses_of_their_own() -> None:
    all_slots = [Slot(number, -1) for number in range(slots.COUNT)]
    for what in ("network", "gateway", "address", "hardware_address", "bridge"):
        assert len({getattr(slot, what) for slot in all_slots}) == slots.COUNT


def assert_free(number: int) -> None:
    slot = take_slot(number)
    assert slot is not None
    slot.release()

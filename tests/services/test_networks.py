"""Networks that killed test runs leave behind are removed."""

import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.services.networks import BRIDGES, MISCOUNTED, NAMES, remove_abandoned_networks, remove_networks
from tests.services.slots import is_unused, taken_slot

LINKS = Path("/sys/class/net")


def test_bridge_and_rules_are_removed_once_no_process_holds_the_slot() -> None:
    with taken_slot(lambda slot: is_unused(slot.network)) as slot:
        bridge = f"{BRIDGES}t{slot.number}"
        for command in (
            ["ip", "link", "add", bridge, "type", "bridge"],
            ["ip", "address", "add", f"{slot.gateway}/24", "dev", bridge],
            ["nft", "add", "table", "inet", bridge],
        ):
            subprocess.run(command, check=True)
        remove_abandoned_networks()
        assert (LINKS / bridge).exists()
    remove_abandoned_networks()
    assert not (LINKS / bridge).exists()
    assert bridge not in list_tables()


def test_rules_without_a_bridge_are_removed_once_no_process_holds_the_slot() -> None:
    with taken_slot(lambda slot: is_unused(slot.network)) as slot:
        table = f"{BRIDGES}t{slot.number}"
        rule = f"add table inet {table}; add chain inet {table} c; add rule inet {table} c ip daddr {slot.network} drop"
        subprocess.run(["nft", rule], check=True)
        remove_abandoned_networks()
        assert table in list_tables()
    remove_abandoned_networks()
    assert table not in list_tables()


@pytest.mark.parametrize(("error", "is_raised"), [(f"network x id 1 {MISCOUNTED}", False), ("permission denied", True)])
def test_network_whose_containers_docker_miscounts_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, is_raised: bool
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\n[ "$2" = ls ] && echo {NAMES}absent || {{ echo "{error}" >&2; exit 1; }}\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(RuntimeError, match=error) if is_raised else nullcontext():
        remove_networks("installation")


def list_tables() -> str:
    """The names of the machine's firewall tables."""
    return subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout

"""Cleanup of the networks that workers create for their nodes, and of their firewall rules. Both outlive a worker."""

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address

from tests.services.slots import number_of, take_slot
from worker.engine.docker_engine import INSTALLATION_LABEL

# A network's name and its bridge's name have the same suffix.
NAMES, BRIDGES = "agent-workspace-", "br-aw"
FAMILIES = ("inet", "bridge")
MISCOUNTED = "has active endpoints"
# A network of a slot in the text of rules.
NETWORK = re.compile(r"(\d+\.\d+\.\d+\.0)/24\b")


def remove_networks(installation: str) -> None:
    """Remove an installation's unused networks from the machine's engine."""
    label = f"label={INSTALLATION_LABEL}={installation}"
    names = _output("docker", "network", "ls", "--filter", label, "--format", "{{.Name}}").split()
    for name in names:
        _remove(name)
        remove_rules(name)


def remove_rules(network: str, place: Sequence[str] = ()) -> None:
    """Remove the rules of a network, if there are any; `place` is the prefix of commands in the rules' namespace."""
    for family in FAMILIES:
        table = [family, network.replace(NAMES, BRIDGES)]
        subprocess.run([*place, "nft", "delete", "table", *table], capture_output=True, check=False)


def remove_abandoned_networks() -> None:
    """Remove the bridges and rules of runs that were killed: those in the networks of slots that no process holds.

    Rules without a bridge would block the next holder of their slot.
    """
    for bridge, number in {*_bridges_in_slots(), *_rules_in_slots()}:
        if slot := take_slot(number):
            subprocess.run(["ip", "link", "delete", bridge], capture_output=True, check=False)
            remove_rules(bridge)
            slot.release()


def _remove(network: str) -> None:
    """Remove an unused network. Docker refuses it if it has miscounted the network's containers (moby/moby#42119).

    It counts them again when it is restarted. Until then, the network stays, and each later sweep tries again.
    """
    command = ["docker", "network", "rm", network]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and MISCOUNTED not in done.stderr:
        raise RuntimeError(done.stderr)


def _bridges_in_slots() -> Iterator[tuple[str, int]]:
    for link in json.loads(_output("ip", "-4", "-json", "address")):
        for entry in link["addr_info"]:
            number = number_of(IPv4Address(entry["local"]))
            if number is not None and link["ifname"].startswith(BRIDGES):
                yield link["ifname"], number


def _rules_in_slots() -> Iterator[tuple[str, int]]:
    for item in json.loads(_output("nft", "--json", "list", "tables"))["nftables"]:
        name = item.get("table", {}).get("name", "")
        if name.startswith(BRIDGES) and item["table"]["family"] == FAMILIES[0]:
            for address in NETWORK.findall(_rules_of(name)):
                number = number_of(IPv4Address(address))
                if number is not None:
                    yield name, number


def _rules_of(table: str) -> str:
    # Another process may have removed it.
    command = ["nft", "list", "table", FAMILIES[0], table]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout

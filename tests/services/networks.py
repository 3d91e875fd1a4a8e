"""Cleanup of the networks that workers create for their nodes, and of their firewall rules. Both outlive a worker."""

import subprocess
from collections.abc import Sequence

from worker.engine.docker_engine import INSTALLATION_LABEL

# A network's name and its bridge's name have the same suffix.
NAMES, BRIDGES = "agent-workspace-", "br-aw"
FAMILIES = ("inet", "bridge")


def remove_networks(installation: str) -> None:
    """Remove an installation's unused networks from the machine's engine."""
    label = f"label={INSTALLATION_LABEL}={installation}"
    names = _output("docker", "network", "ls", "--filter", label, "--format", "{{.Name}}").split()
    for name in names:
        _output("docker", "network", "rm", name)
        remove_rules(name)


def remove_rules(network: str, place: Sequence[str] = ()) -> None:
    """Remove the rules of a network, if there are any; `place` is the prefix of commands in the rules' namespace."""
    for family in FAMILIES:
        table = [family, network.replace(NAMES, BRIDGES)]
        subprocess.run([*place, "nft", "delete", "table", *table], capture_output=True, check=False)


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout

"""The networks that workers make for their nodes, and the firewall rules of these: both outlive a worker."""

import subprocess
from collections.abc import Sequence

from worker.engine.docker_engine import INSTALLATION_LABEL

# Such a name ends as that of the network's bridge does.
NAMES, BRIDGES = "agent-workspace-", "br-aw"
FAMILIES = ("inet", "bridge")


def remove_networks(installation: str) -> None:
    """Remove an installation's networks on the machine's own engine, which no container uses any more."""
    label = f"label={INSTALLATION_LABEL}={installation}"
    names = _output("docker", "network", "ls", "--filter", label, "--format", "{{.Name}}").split()
    for name in names:
        _output("docker", "network", "rm", name)
        remove_rules(name)


def remove_rules(network: str, place: Sequence[str] = ()) -> None:
    """Remove the rules for a network, if there are any; `place` is a command that runs others in their namespace."""
    for family in FAMILIES:
        table = [family, network.replace(NAMES, BRIDGES)]
        subprocess.run([*place, "nft", "delete", "table", *table], capture_output=True, check=False)


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout

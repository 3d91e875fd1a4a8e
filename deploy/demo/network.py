"""Where on this machine a sandbox can reach a server."""

import ipaddress
import json
import shutil
import subprocess

from deploy.demo.errors import DemoError


def bridge_address(network: str = "bridge") -> str:
    """Address of this machine on the engine's bridge network, 172.17.0.1 unless configured otherwise."""
    docker = shutil.which("docker")
    if docker is None:
        raise DemoError("no docker command on PATH; give the address sandboxes can reach with --model-host")
    command = [docker, "network", "inspect", network, "--format", "{{json .IPAM.Config}}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode != 0:
        raise DemoError(f"the Docker Engine does not answer: {done.stderr.strip()}")
    return gateway(json.loads(done.stdout) or [])


def gateway(configs: list[dict[str, str]]) -> str:
    """The first IPv4 gateway; engines that leave it out take the subnet's first address."""
    for config in configs:
        subnet = ipaddress.ip_network(config["Subnet"])
        if isinstance(subnet, ipaddress.IPv4Network):
            return config.get("Gateway") or str(subnet[1])
    raise DemoError("the bridge network has no IPv4 subnet; give an address with --model-host")

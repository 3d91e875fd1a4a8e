"""The address at which sandboxes reach this machine."""

import ipaddress
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from deploy.demo.account import run
from deploy.demo.errors import DemoError
from shared.settings import Settings


def node_address() -> str:
    """This machine's address in the network of its sandboxes."""
    settings = Settings()
    return settings.sandbox_gateway if settings.network_isolation else bridge_address()


@contextmanager
def reachable(url: str) -> Iterator[None]:
    """Let the sandboxes whose owner's settings name the server at `url` reach it, for the length of the block."""
    if not Settings().network_isolation:
        yield
        return
    address = url.removeprefix("http://")
    run("models", "allow", address)
    try:
        yield
    finally:
        run("models", "refuse", address)


def bridge_address(network: str = "bridge") -> str:
    """This machine's address on the engine's bridge network; 172.17.0.1 by default."""
    docker = shutil.which("docker")
    if docker is None:
        raise DemoError("no docker command on PATH; set --model-host to an address that sandboxes can reach")
    command = [docker, "network", "inspect", network, "--format", "{{json .IPAM.Config}}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode != 0:
        raise DemoError(f"the Docker Engine does not respond: {done.stderr.strip()}")
    return gateway(json.loads(done.stdout) or [])


def gateway(configs: list[dict[str, str]]) -> str:
    """The first IPv4 gateway. Engines that omit it use the subnet's first address."""
    for config in configs:
        subnet = ipaddress.ip_network(config["Subnet"])
        if isinstance(subnet, ipaddress.IPv4Network):
            return config.get("Gateway") or str(subnet[1])
    raise DemoError("the bridge network has no IPv4 subnet; set --model-host to an address that sandboxes can reach")

"""Names and addresses of a node's network, and the addresses that all of its sandboxes reach."""

import hashlib
import pwd
from ipaddress import IPv4Address
from pathlib import Path

from shared.settings import Settings
from worker.network.rules import BRIDGE_PREFIX, Bridge, element
from worker.settings import AUTO, NO_RESOLVERS, read_name_servers

# The second is systemd-resolved's list of the servers behind its own address, which containers can't reach.
RESOLVER_FILES = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
PROXY_USER = "aw-egress"
MAX_RESOLVERS = 3


def make_bridge(shared: Settings, installation: str, node: str) -> Bridge:
    """The bridge of this node's sandboxes. Its name has 13 characters; Linux allows 15."""
    digest = hashlib.sha256(f"{installation}/{node}".encode()).hexdigest()
    return Bridge(f"{BRIDGE_PREFIX}{digest[:8]}", shared.sandbox_network, find_proxy_user())


def find_proxy_user() -> int | None:
    """The number of the egress proxy's user; None if `deploy/users` has not created it."""
    try:
        return pwd.getpwnam(PROXY_USER).pw_uid
    except KeyError:
        return None


def network_name(bridge: Bridge) -> str:
    """The name of the engine's network."""
    return f"agent-workspace-{bridge.name.removeprefix(BRIDGE_PREFIX)}"


def service_address(shared: Settings, door_port: int) -> str:
    """`address . port` at which sandboxes reach the service: their node's door."""
    return element(shared.sandbox_gateway, door_port)


def resolvers(setting: str) -> tuple[str, ...]:
    """The name servers of sandboxes with open egress, from AW_SANDBOX_DNS."""
    if setting == NO_RESOLVERS:
        return ()
    if setting != AUTO:
        return read_name_servers(setting)
    for file in RESOLVER_FILES:
        if found := _read_resolvers(file):
            return found[:MAX_RESOLVERS]
    return ()


def _read_resolvers(file: Path) -> tuple[str, ...]:
    try:
        lines = [line.split() for line in file.read_text(errors="replace").splitlines()]
    except OSError:
        return ()
    named = [words[1] for words in lines if len(words) > 1 and words[0] == "nameserver"]
    return tuple(text for text in named if _is_reachable(text))


def _is_reachable(text: str) -> bool:
    try:
        return not IPv4Address(text).is_loopback
    except ValueError:
        return False

"""`python -m deploy.door`: run this node's door in the foreground.

Python opens the sockets, and HAProxy inherits them. So HAProxy needs no privileges, and the gateway's address can be
bound before the engine has created its bridge (IP_FREEBIND). If root starts the door, HAProxy runs as a user of its
own, which needs to read nothing but the certificate.
"""

import os
import shutil
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from deploy.door import configuration
from deploy.door.configuration import Door
from deploy.door.name_servers import find_family, find_name_servers
from deploy.door.network import SandboxSubnet, find_network
from deploy.service.programs import PATH, as_user, become, in_memory
from shared.agent_server.door import PURPOSE
from shared.backup.keys import read_vault
from shared.cli.process_settings import read_settings
from shared.errors import Invalid
from shared.settings import Settings
from worker.settings import WorkerSettings

USER = "aw-door"
BACKLOG = 2048
IP_FREEBIND = 15


def main() -> None:
    """Open the sockets, and become HAProxy."""
    shared, settings = read_settings(Settings, "door"), read_settings(WorkerSettings, "door")
    try:
        door = prepare(shared, settings)
    except (OSError, ValueError) as error:
        sys.exit(f"door: AW_NODE_ADDRESS, AW_DOOR_PORT or AW_SANDBOX_ADDRESSES can't be used: {error}")
    except Invalid as error:
        sys.exit(f"door: {error}")
    for descriptor in door.descriptors:
        os.set_inheritable(descriptor, True)  # noqa: FBT003 - a positional-only parameter
    become([*_identity(), *door.command])


@dataclass(frozen=True)
class PreparedDoor:
    """A command, and the descriptors that it inherits; this object holds them open."""

    command: Sequence[str]
    descriptors: Sequence[int]
    sockets: Sequence[socket.socket]


def prepare(shared: Settings, settings: WorkerSettings) -> PreparedDoor:
    """Open a door's sockets and write its configuration.

    Raises:
        OSError: an address is taken, or not one of this machine.
        ValueError: a setting is not an address.
        Invalid: there is no secret key, or one is malformed.
    """
    network, tokens = find_network(shared), read_vault(shared).derive_all(PURPOSE)
    sockets = open_sockets(settings, network)
    inner, outer = (opened.fileno() for opened in sockets)
    certificate = settings.door_certificate and str(Path(settings.door_certificate).absolute())
    host = urlsplit(shared.api_url).hostname or ""
    names = find_name_servers(host), find_family(host)
    text = configuration.write(Door(inner, outer, network, tokens, shared.api_url, certificate, *names))
    file = in_memory("door", text)
    return PreparedDoor([find_haproxy(), "-db", "-f", f"/dev/fd/{file}"], (inner, outer, file), sockets)


def find_haproxy() -> str:
    """Return the path of HAProxy; end the process if it is missing."""
    found = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:{PATH}")
    return found or sys.exit("door: haproxy is missing; install it with deploy/setup, or: apt-get install haproxy")


def open_sockets(settings: WorkerSettings, network: SandboxSubnet) -> list[socket.socket]:
    """Open the sockets for the service and for sandboxes. A process that this one becomes inherits them.

    Raises:
        OSError: an address is taken, or not one of this machine.
        ValueError: the node's address is not a single one.
    """
    if ip_address(settings.node_address).is_unspecified:
        raise ValueError(f"{settings.node_address} stands for all addresses, also the one of sandboxes")
    return [_open(settings.node_address, settings.door_port), _open(str(network.gateway), settings.door_port)]


def _open(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if listener.family == socket.AF_INET:
        listener.setsockopt(socket.SOL_IP, IP_FREEBIND, 1)
    listener.bind((host, port))
    listener.listen(BACKLOG)
    return listener


def _identity() -> list[str]:
    try:
        return as_user(USER)
    except ValueError as error:
        if os.environ.get("AW_OWN_USERS") == "1":
            sys.exit(f"door: {error}")
        print(f"warning: the door runs as root, because {error}", file=sys.stderr)
        return []


if __name__ == "__main__":
    main()

"""`python -m deploy.service.node_address MODULE`: run a module with this machine's address as AW_NODE_ADDRESS.

It is the address by which the machine reaches the database. In a Swarm, all nodes have the same settings.
"""

import os
import runpy
import socket
import sys
from urllib.parse import urlsplit

from shared.settings import Settings


def find_address(database_url: str) -> str:
    """The address of the interface on the way to the database; no packet is sent.

    Raises:
        OSError: there is no way to its host.
    """
    url = urlsplit(database_url)
    family, kind, _, _, target = socket.getaddrinfo(url.hostname, url.port or 5432, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def main(module: str) -> None:
    """Run the module as the program, unless a setting of the environment names an address."""
    os.environ.setdefault("AW_NODE_ADDRESS", find_address(Settings().database))
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])

"""`python -m deploy.service.node_address MODULE`: run a module with this machine's address as AW_NODE_ADDRESS.

It is the address by which the machine reaches the database. In a Swarm, all nodes have the same settings, so they
can't contain a node's address.
"""

import os
import runpy
import socket
import sys

from shared.cli.process_settings import read_settings
from shared.db.waiting import await_database, find_host
from shared.errors import Unavailable
from shared.observability.logs import configure_logs
from shared.settings import Settings
from worker.settings import WorkerSettings


def find_address(database_url: str) -> str:
    """The address of the interface that leads to the database; no packet is sent.

    Raises:
        OSError: there is no route to its host.
    """
    host, port = find_host(database_url)
    family, kind, _, _, target = socket.getaddrinfo(host or None, port or 5432, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def await_address(url: str, seconds: float) -> str:
    """The same address, as soon as the database's host name resolves and there is a route to it.

    Raises:
        Unavailable: the timeout has passed.
    """
    return await_database(lambda: find_address(url), url, seconds, (OSError,))


def main(module: str) -> None:
    """Run the module as the program, unless a setting of the environment names an address."""
    if "AW_NODE_ADDRESS" not in os.environ:
        settings, of_node = read_settings(Settings, module), read_settings(WorkerSettings, module)
        configure_logs(settings, module)
        try:
            os.environ["AW_NODE_ADDRESS"] = await_address(settings.database, of_node.database_wait_seconds)
        except Unavailable as error:
            sys.exit(f"{module}: {error}")
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])

"""`python -m deploy.engine_filter [SOCKET USER]`: filter a worker's requests to the engine of AW_DOCKER_HOST.

The worker is given the socket as its `AW_DOCKER_HOST`, and no access to the engine's. Only USER may use the socket. By
default these are the socket and the user of `make run`.
"""

import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

import structlog

from deploy.engine_filter.bodies import Policy
from deploy.engine_filter.network import NetworkRoute
from deploy.engine_filter.proxy import EngineFilter
from deploy.service.owners import WORKER, engine_socket
from shared.cli.process_settings import read_settings
from shared.db.database import Database
from shared.db.file_owner import acting_as_owner
from shared.db.waiting import await_schema
from shared.errors import Unavailable
from shared.nodes import registry as node_registry
from shared.observability.logs import configure_logs
from shared.settings import Settings
from worker.engine import kernel_limits
from worker.network.addresses import make_bridge
from worker.network.firewall import FirewallError, LocalFirewall
from worker.network.isolation import network_request
from worker.settings import WorkerSettings

UNIX = "unix://"

log = structlog.get_logger()


def main(arguments: Sequence[str]) -> None:
    """Serve until a signal ends the process."""
    shared, settings = read_settings(Settings, "engine filter"), read_settings(WorkerSettings, "engine filter")
    configure_logs(shared, "engine-filter")
    if not settings.docker_host.startswith(UNIX):
        sys.exit(
            f"engine filter: AW_DOCKER_HOST is {settings.docker_host}; only an engine on a unix socket is filtered"
        )
    # As process 1 of a container, it would ignore the signal without a handler.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    path, user = (Path(arguments[0]).absolute(), arguments[1]) if arguments else (engine_socket(shared.var_dir), WORKER)
    try:
        policy, network = make_policy(shared, settings)
    except Unavailable as error:
        sys.exit(f"engine filter: {error}")
    kernel_limits.raise_low()
    with EngineFilter(path, settings.docker_host.removeprefix(UNIX), policy, network) as server:
        shutil.chown(path, user)
        log.info("filtering", engine=settings.docker_host, socket=str(path))
        server.serve_forever()


def make_policy(shared: Settings, settings: WorkerSettings) -> tuple[Policy, NetworkRoute | None]:
    """The policy for the installation that the database names, which is read once, and the route to its network rules.

    Raises:
        Unavailable: the database was not ready within the timeout.
    """
    installation = _read_installation(shared, settings)
    bridge = make_bridge(shared, installation, settings.node)
    if not shared.network_isolation:
        with suppress(FirewallError):  # rules of an earlier run would still deny traffic
            LocalFirewall(bridge).remove()
    policy = Policy(
        installation=installation,
        capabilities=_names(settings.allowed_capabilities),
        runtimes=settings.runtimes,
        network=network_request(bridge, installation) if shared.network_isolation else None,
    )
    return policy, NetworkRoute(bridge, LocalFirewall(bridge)) if shared.network_isolation else None


def _read_installation(shared: Settings, settings: WorkerSettings) -> str:
    with acting_as_owner(shared.database), closing(Database(shared.database, pool_size=1)) as database:
        await_schema(database, settings.database_wait_seconds)
        with database.transaction() as session:
            return node_registry.installation_id(session)


def _names(text: str) -> frozenset[str]:
    return frozenset(filter(None, text.replace(" ", "").split(",")))


if __name__ == "__main__":
    main(sys.argv[1:])

"""`python -m api`: one API process. Processes share the port, so any number may run."""

import gc

if __name__ == "__main__":
    # The objects that are created until the server runs are permanent, and collections would take a fifth of that time.
    gc.disable()

import structlog
import uvicorn

from api.app import create_app, make_context
from api.limits.addresses import proxy_addresses
from api.server.connections import limited_http
from api.server.counted_websockets import CountedWebSocket
from api.server.graceful import DrainingServer
from api.server.limits import ConnectionLimits, fit_connections
from api.server.sockets import BACKLOG, get_sockets
from shared import descriptors
from shared.cli.process_settings import read_settings
from shared.db import unfinished_restore
from shared.db.database_clock import start_clock_sync
from shared.errors import Conflict, Invalid
from shared.observability.correlation import configure_traces
from shared.observability.logs import configure_logs
from shared.observability.metrics import configure_instruments
from shared.reasons import more
from shared.settings import Settings

log = structlog.get_logger()

# Longer than clients keep idle connections: the client must close them, because only the client knows whether it will
# send another request.
KEEPALIVE_SECONDS = 75
# The entry of the troubleshooting page.
ENTRY = "a-port-is-in-use"


def main() -> None:
    """Listen on the configured ports until a signal stops the process."""
    settings = read_settings(Settings, "web")
    configure_logs(settings, "web")
    configure_instruments(settings)
    configure_traces(settings.traces_url, "agent-workspace-api")
    try:
        context = make_context(settings)
        unfinished_restore.require_finished(context.database)
        app = create_app(context)
    except (Conflict, Invalid) as error:
        raise SystemExit(f"web: {error}") from None
    start_clock_sync(context.database)  # before the first request, which may write times
    max_connections = fit_connections(settings.max_connections, descriptors.raise_limit())
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        backlog=BACKLOG,
        http=limited_http(ConnectionLimits(settings.head_seconds, settings.body_bytes_per_second)),
        ws=CountedWebSocket,
        # Compressing a large message would block the event loop.
        ws_per_message_deflate=False,
        limit_concurrency=max_connections,
        forwarded_allow_ips=proxy_addresses(settings.trusted_proxies),
        timeout_keep_alive=KEEPALIVE_SECONDS,
        timeout_graceful_shutdown=10,
        server_header=False,
    )
    try:
        sockets = get_sockets(settings)
    except OSError as error:
        raise SystemExit(f"web: AW_HOST, AW_PORT or AW_CLIENT_PORT can't be used: {error} {more(ENTRY)}") from None
    addresses = ["http://{}:{}".format(*listener.getsockname()[:2]) for listener in sockets]
    log.info("listening", addresses=addresses, max_connections=max_connections)
    gc.freeze()  # else each full collection scans all startup objects: 85 ms
    gc.enable()
    DrainingServer(config, context.leave).run(sockets=sockets)


if __name__ == "__main__":
    main()

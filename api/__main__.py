"""`python -m api`: one API process. Start as many as wanted: they share the port."""

import fcntl
import socket
import struct

import structlog
import uvicorn

from api.app import create_app, make_context
from shared.logs import configure_logs
from shared.settings import Settings

log = structlog.get_logger()

IP_FREEBIND = 15
SIOCGIFADDR = 0x8915
DOCKER_BRIDGE = "docker0"
# Docker's own default for that bridge, for when the engine has not made it yet.
DEFAULT_GATEWAY = "172.17.0.1"


def main() -> None:
    """Listen on the configured address and on the one that sandboxes reach, until told to stop."""
    settings = Settings()
    configure_logs(settings, "web")
    app = create_app(make_context(settings))
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=10, server_header=False)
    hosts = dict.fromkeys(host for host in (settings.host, _gateway(settings)) if host)
    sockets = [_listen(host, settings.port) for host in hosts]
    log.info("listening", addresses=[f"http://{host}:{settings.port}" for host in hosts])
    uvicorn.Server(config).run(sockets=sockets)


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Every API process binds the same port, and the kernel spreads the connections among them.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if listener.family == socket.AF_INET:
        # The bridge may appear after us: an engine may be down when we start.
        listener.setsockopt(socket.SOL_IP, IP_FREEBIND, 1)
    listener.bind((host, port))
    return listener


def _gateway(settings: Settings) -> str:
    if settings.host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return ""
    return _bridge_address() or DEFAULT_GATEWAY if settings.gateway_host == "auto" else settings.gateway_host


def _bridge_address() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", DOCKER_BRIDGE.encode())
        try:
            answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


if __name__ == "__main__":
    main()

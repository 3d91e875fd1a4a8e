"""What TCP does about a peer that is lost without ending its connections."""

import socket
from typing import Any


def seconds_until_lost(connection: Any) -> float | None:
    """The time until the kernel ends the connection if its peer no longer responds; None: it never does."""
    if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
        return None
    idle, pause, probes = (
        connection.getsockopt(socket.IPPROTO_TCP, option)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    )
    return float(idle + pause * probes)

"""Connections to hosts that users name: only to public addresses and to the administrator's hosts (decision 35).

The backend resolves the name and checks its addresses when it connects, and connects to a checked address: the name
can't resolve to another one in between.
"""

import socket
import ssl
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpcore
import httpx

from api.agent_server.transport import CountedStream
from api.fair_threads import FairThreads
from shared.addresses import is_public
from shared.agent_server.limits import limited_header
from shared.errors import Forbidden
from shared.sql.write_slots import caller

IDLE_SECONDS = 30.0
MAX_CONNECTIONS = 100
# A lookup takes long if the name's DNS servers do not respond. In these threads it delays only lookups of other git
# hosts. A user has one lookup at a time.
_RESOLVERS = FairThreads(16, "git-names")


def check_address(address: str, listed: frozenset[str]) -> SplitResult:
    """Parse and check a provider's address, as a user stored it.

    Args:
        address: a host, with a scheme, a port and a path if they differ from the defaults.
        listed: the administrator's hosts, which are exempt; `host:port` exempts only that port.

    Raises:
        Forbidden: the address is not a web address, or not https although the host is not listed.
    """
    try:
        parts = urlsplit((address if "://" in address else f"https://{address}").rstrip("/"))
        known = parts.hostname and parts.port != 0
    except ValueError:
        known = None
    if not known or "@" in parts.netloc or parts.query or parts.fragment:
        raise Forbidden("the stored host of this provider is not a web address: store another one")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_listed(parts.hostname, parts.port or 80, listed)):
        raise Forbidden("the stored host of this provider needs https; the administrator can exempt it in AW_GIT_HOSTS")
    return parts


def is_listed(host: str | None, port: int, listed: frozenset[str]) -> bool:
    return host in listed or f"{host}:{port}" in listed


class GuardedBackend(httpcore.AnyIOBackend):
    """A network backend that connects to public addresses and to listed hosts only."""

    def __init__(self, listed: frozenset[str]) -> None:
        self._listed = listed

    async def connect_tcp(self, host: str, port: int, *rest: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        """Connect to the host.

        Raises:
            Forbidden: the host has an address that is not public.
        """
        addresses = [host] if is_listed(host, port, self._listed) else await _public_addresses(host, port)
        for address in addresses[:-1]:
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return CountedStream(await super().connect_tcp(address, port, *rest, **options))
        return CountedStream(await super().connect_tcp(addresses[-1], port, *rest, **options))


async def _public_addresses(host: str, port: int) -> list[str]:
    try:
        found = await _RESOLVERS.run(caller.get(), partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))
    except OSError:
        raise httpcore.ConnectError("no such host") from None
    addresses = [str(entry[4][0]).partition("%")[0] for entry in found]
    if not addresses or not all(is_public(ip_address(address)) for address in addresses):
        raise Forbidden(
            "the stored host of this provider has no public address; the administrator can exempt it in AW_GIT_HOSTS"
        )
    return addresses


class GuardedTransport(httpx.AsyncHTTPTransport):
    """httpx's transport over a guarded backend."""

    def __init__(self, listed: frozenset[str]) -> None:
        # The system's certificate authorities, and no proxy: a proxy would resolve names by itself.
        context = ssl.create_default_context()
        super().__init__(verify=context, trust_env=False)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=context,
            max_connections=MAX_CONNECTIONS,
            keepalive_expiry=IDLE_SECONDS,
            network_backend=GuardedBackend(listed),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; return its response when the header is complete. Headers are limited, as for agent servers.

        Raises:
            httpx.TransportError: there is no response.
        """
        with limited_header():
            return await super().handle_async_request(request)

"""Connections to hosts that users name: only to public addresses, or to what the administrator lists (decision 35).

The addresses of a name are looked at when the connection is made, and the connection goes to one that was looked at: a
name can't mean another address a moment later.
"""

import asyncio
import socket
import ssl
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpcore
import httpx

from shared.errors import Forbidden

# It stands for IPv4 addresses, of any kind.
TRANSLATED = ip_network("64:ff9b::/32")
IDLE_SECONDS = 30.0
MAX_CONNECTIONS = 100
# Names that nobody answers for take long: they keep no others waiting than such names.
_RESOLVERS = ThreadPoolExecutor(4, "git-names")


def check_address(address: str, listed: frozenset[str]) -> SplitResult:
    """A provider's address, as a user has stored it.

    Args:
        address: a host, with a port, a path and a scheme if they are not the usual ones.
        listed: the hosts that may be named whatever they are, each with a port if only that one is meant.

    Raises:
        Forbidden: it is no web address, or no https where that is needed.
    """
    try:
        parts = urlsplit((address if "://" in address else f"https://{address}").rstrip("/"))
        known = parts.hostname and parts.port != 0
    except ValueError:
        known = None
    if not known or "@" in parts.netloc or parts.query or parts.fragment:
        raise Forbidden("the host that is stored for this provider is no web address: store another one")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_listed(parts.hostname, parts.port or 80, listed)):
        raise Forbidden("the host that is stored for this provider is asked by https only; AW_GIT_HOSTS may list it")
    return parts


def is_listed(host: str | None, port: int, listed: frozenset[str]) -> bool:
    """Whether the administrator has listed this host, or this port of it."""
    return host in listed or f"{host}:{port}" in listed


def is_public(text: str) -> bool:
    """Whether an address is anybody's to reach, not one within a machine, a network or a tunnel."""
    address = ip_address(text)
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo and address.teredo[1])
        if inner is not None or address in TRANSLATED:
            return False
    return address.is_global and not address.is_multicast and not _is_reserved(address)


def _is_reserved(address: IPv4Address | IPv6Address) -> bool:
    return address.is_unspecified or address.is_reserved


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Opens connections, where that is allowed."""

    def __init__(self, listed: frozenset[str]) -> None:
        """Let these hosts be whatever they are."""
        self._listed = listed
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the protocol's
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection to the host.

        Raises:
            Forbidden: it has an address that is not public.
        """
        addresses = [host] if is_listed(host, port, self._listed) else await _public_addresses(host, port)
        for address in addresses[:-1]:
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._inner.connect_tcp(addresses[-1], port, timeout, local_address, socket_options)

    async def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        """Nothing is behind one."""
        raise Forbidden("no sockets of this machine")

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


async def _public_addresses(host: str, port: int) -> list[str]:
    try:
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(_RESOLVERS, look_up)
    except OSError:
        raise httpcore.ConnectError("no such host") from None
    addresses = [str(entry[4][0]).partition("%")[0] for entry in found]
    if not addresses or not all(map(is_public, addresses)):
        raise Forbidden("the host that is stored for this provider is not a public one; AW_GIT_HOSTS may list it")
    return addresses


class GuardedTransport(httpx.AsyncHTTPTransport):
    """httpx's transport, over connections that are looked at."""

    def __init__(self, listed: frozenset[str]) -> None:
        """Trust whom the system trusts; no proxy is used, which would look names up by itself."""
        context = ssl.create_default_context()
        super().__init__(verify=context, trust_env=False)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=context,
            max_connections=MAX_CONNECTIONS,
            keepalive_expiry=IDLE_SECONDS,
            network_backend=GuardedBackend(listed),
        )
